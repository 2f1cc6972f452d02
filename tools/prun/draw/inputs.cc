// Reads the operands of `prun draw`, recognized by name: a plan, a trace, rows of metrics, a folder of runs.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "draw/drawing.h"
#include "draw/program_view.h"
#include "draw/timeline_sources.h"
#include "job/build.h"
#include "predict/predict.h"
#include "watch/flight.h"
#include "watch/run_folder.h"

namespace prun::draw {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the values of an option in the command line of a run.
std::vector<std::string> values_of(const Json& words, const std::string& option) {
  std::vector<std::string> values;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i];
    if (word == option && i + 1 < words.size()) values.push_back(words[++i]);
    if (word.starts_with(option + "=")) values.push_back(word.substr(option.size() + 1));
  }
  return values;
}

class Reader {
 public:
  explicit Reader(DrawOptions& options) : options_(options) {}

  Drawing read() {
    for (const std::string& operand : options_.operands) read_operand(operand);
    if (job_)
      for (Timeline& timeline : drawing_.timelines) put_memory(timeline);
    else if (!drawing_.timelines.empty())
      drawing_.notes.emplace_back("Memory is drawn where the plan is given, too.");
    put_beside_each_other();
    std::vector<std::string> names;
    for (const std::string& operand : options_.operands)
      names.push_back(operand.ends_with(".lua") ? operand : fs::path(operand).filename().string());
    drawing_.title = options_.title.empty() ? join(names, ", ") : options_.title;
    return std::move(drawing_);
  }

 private:
  void read_operand(const std::string& operand) {
    if (operand.ends_with(".lua")) {
      read_plan(operand);
    } else if (fs::is_directory(operand)) {
      read_folder(operand);
    } else if (fs::exists(fs::path(kRunsFolder) / operand / kRunFile)) {
      read_folder(fs::path(kRunsFolder) / operand);
    } else if (!fs::exists(operand)) {
      throw usage_error(
          fmt::format("there is no {}: prun draw takes plans, traces, rows of metrics and runs", operand));
    } else if (operand.ends_with(".jsonl")) {
      drawing_.curves.push_back(read_curve(operand, fs::path(operand).stem().string()));
    } else {
      read_trace(operand);
    }
  }

  void read_plan(const std::string& path) {
    if (!options_.job.plan.empty())
      throw usage_error(fmt::format("one plan at a time: '{}' and '{}'", options_.job.plan, path));
    options_.job.plan = path;
    if (!options_.cluster.empty()) return predict();
    job_ = written_out(build_job(options_.job, options_.job.ranks()));
    drawing_.timelines.push_back(ideal_timeline(*job_));
  }

  void predict() {
    const simulate::Cluster cluster = open_cluster(options_.job, options_.cluster);
    const SimulatedPlan made = simulate_plan(options_.job, cluster, {.wanted = Wanted::spans});
    job_ = *made.job;
    drawing_.timelines.push_back(simulated_timeline(*job_, made.result));
  }

  void read_trace(const std::string& path) {
    drawing_.timelines.push_back(read_trace_file(path, options_.first_step, options_.last_step));
  }

  void read_folder(const fs::path& folder) {
    if (fs::exists(folder / kRunFile)) return read_run(folder);
    std::vector<fs::path> runs;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
      if (fs::exists(entry.path() / kRunFile)) runs.push_back(entry.path());
    if (runs.empty())
      throw usage_error(fmt::format("{} is not a run and contains none; a run has a {}", folder.string(), kRunFile));
    std::sort(runs.begin(), runs.end());
    for (const fs::path& run : runs) read_rows(run);
  }

  void read_rows(const fs::path& folder) {
    const fs::path rows = folder / "metrics.jsonl";
    const std::string name = fs::weakly_canonical(folder).filename().string();
    std::error_code error;
    if (fs::file_size(rows, error) == 0 || error) {
      drawing_.notes.push_back(fmt::format("{} has no rows: no step had ended.", name));
      return;
    }
    drawing_.curves.push_back(read_curve(rows.string(), name));
  }

  // Reads a run's curves, and its trace if it has one, otherwise the last ops of each rank of a failed run.
  void read_run(const fs::path& folder) {
    read_rows(folder);
    const Json about = Json::parse(read_all(folder / kRunFile), nullptr, false);
    std::vector<std::string> traces;
    if (about.is_object() && about.contains("arguments")) traces = values_of(about["arguments"], "--trace");
    const std::string trace = traces.empty() ? "" : traces.front();
    const fs::path path = fs::path(about.is_object() ? about.value("directory", "") : "") / trace;
    if (!trace.empty() && fs::is_regular_file(path)) {
      read_trace(path.string());
    } else if (fs::exists(folder / kFlightFile)) {
      read_flight(folder);
    } else {
      drawing_.notes.push_back(fmt::format("{} has no timeline: it was run without --trace, and did not fail. {}",
                                           folder.string(), what_to_do(about)));
    }
  }

  // Returns the commands that draw the schedule of a run without a timeline, and that measure one.
  static std::string what_to_do(const Json& about) {
    const std::string measure = "run it again with --trace FILE";
    if (!about.is_object() || !about.contains("arguments")) return fmt::format("To have one, {}.", measure);
    std::string plan = about.value("plan", "");
    if (const fs::path there = fs::path(about.value("directory", "")) / plan; !fs::exists(plan) && fs::exists(there))
      plan = there.string();
    std::string words = fmt::format("{} --nproc {}", shell_word(plan), about.value("ranks", 1));
    for (const std::string& setting : values_of(about["arguments"], "--set")) words += " --set " + shell_word(setting);
    return fmt::format("Its schedule: prun draw {}; to measure one, {}.", words, measure);
  }

  void read_flight(const fs::path& folder) {
    const Flight flight = parse_flight(read_all(folder / kFlightFile), (folder / kFlightFile).string());
    Job job;
    try {
      job = written_out(parse_job(read_all(folder / kProgramFile)));
    } catch (Error& error) {
      throw error.prefix((folder / kProgramFile).string());
    }
    std::vector<StreamTimes> times;
    bool any = false;
    for (const FlightRank& rank : flight.ranks) {
      if (rank.rank >= static_cast<int>(job.class_of_rank.size())) continue;
      const size_t streams = std::min<size_t>(rank.streams.size(), job.program(rank.rank).step().streams.size());
      for (size_t s = 0; s < streams; ++s) {
        StreamTimes one{rank.rank, static_cast<int>(s), {}, rank.streams[s].last.size() >= kKeptEvents};
        const size_t ops = job.program(rank.rank).step().streams[static_cast<int>(s)].ops.size();
        for (const OpEvent& event : rank.streams[s].last)
          if (event.op < ops && event.end_ns > 0) one.events.push_back(event);
        any |= !one.events.empty();
        times.push_back(std::move(one));
      }
    }
    if (!any)
      throw usage_error(fmt::format("{} has no ops: the run failed before its first", (folder / kFlightFile).string()));
    Timeline timeline = timeline_of(job, times);
    timeline.name = "recorded";
    timeline.source = folder.string();
    drawing_.timelines.push_back(std::move(timeline));
    drawing_.notes.push_back(
        fmt::format("A run that failed keeps the last {} ops of each stream alone; the figures cover the time of which "
                    "all streams have their ops.",
                    kKeptEvents));
  }

  void put_memory(Timeline& timeline) {
    match(timeline, *job_);
    timeline.mesh = job_->classes.front().mesh.text();
    if (timeline.name != "recorded") timeline.memory = memory_of(timeline, *job_);
  }

  // Stretches a schedule with unit costs to the mean measured step, so that both share one axis.
  void put_beside_each_other() {
    const auto measured = std::find_if(drawing_.timelines.begin(), drawing_.timelines.end(),
                                       [](const Timeline& timeline) { return timeline.unit_ns == 0; });
    const auto schedule = std::find_if(drawing_.timelines.begin(), drawing_.timelines.end(),
                                       [](const Timeline& timeline) { return timeline.unit_ns > 0; });
    if (measured == drawing_.timelines.end() || schedule == drawing_.timelines.end()) return;
    stretch(*schedule, mean_step(*measured));
    drawing_.notes.emplace_back("The schedule has unit costs; it is stretched to the mean step that was measured.");
    std::rotate(drawing_.timelines.begin(), schedule, schedule + 1);  // the schedule comes first
  }

  static int64_t mean_step(const Timeline& timeline) {
    int first = INT_MAX, last = 0;
    for (const Box& box : timeline.boxes) first = std::min(first, box.step), last = std::max(last, box.step);
    return timeline.end() / std::max(1, last - first + 1);
  }

  static void stretch(Timeline& timeline, int64_t end) {
    const double by = static_cast<double>(end) / static_cast<double>(std::max<int64_t>(1, timeline.end()));
    const auto to = [by](int64_t& time) { time = static_cast<int64_t>(static_cast<double>(time) * by); };
    for (Box& box : timeline.boxes)
      for (int64_t* time : {&box.ready, &box.begin, &box.arrived, &box.end}) to(*time);
    for (MemoryStrip& strip : timeline.memory)
      for (int64_t& time : strip.times) to(time);
    timeline.unit_ns = 0;
  }

  DrawOptions& options_;
  Drawing drawing_;
  std::optional<Job> job_;  // the job of the plan
};

}  // namespace

Drawing read_inputs(DrawOptions& options) { return Reader(options).read(); }

}  // namespace prun::draw
