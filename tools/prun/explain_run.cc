// prun explain [RUN]: the position of each rank of a run, and the rank that held up the others, from the flight
// recorders and the program. A running job's launcher is queried; a failed run's folder is read.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "exec/job_run.h"
#include "ir/calendar.h"
#include "job_options.h"
#include "watch/find_run.h"
#include "watch/run_folder.h"
#include "watch/who_waits.h"

namespace prun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kAnswerSeconds = 5;
constexpr size_t kShownOps = 8;

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Recorded {
  FoundRun run;
  Flight flight;
  Job job;
  Json failure;  // null: the job is running, or its failure is unknown
};

// Returns the newest run in a folder of runs that failed, because the latest one may have ended well. Throws
// usage_error if none failed; nullopt: the folder has no runs.
std::optional<FoundRun> newest_failed_run(const fs::path& folder) {
  std::vector<std::string> all, failed;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (!fs::exists(entry.path() / kRunFile)) continue;
    all.push_back(entry.path().filename().string());
    if (fs::exists(entry.path() / kFlightFile)) failed.push_back(all.back());
  }
  if (all.empty()) return std::nullopt;
  if (!failed.empty()) return find_run((folder / *std::ranges::max_element(failed)).string());
  std::ranges::sort(all, std::greater<>());
  const std::string more = all.size() > 3 ? ", .." : "";
  all.resize(std::min<size_t>(all.size(), 3));
  throw usage_error(fmt::format("no run in {} has failed; the newest: {}{} (`prun runs` lists them)", folder.string(),
                                join(all, ", "), more));
}

Recorded read_recorded(const std::string& word) {
  Recorded recorded;
  std::optional<FoundRun> failed;
  if (!word.empty() && !fs::exists(fs::path(word) / kRunFile)) failed = newest_failed_run(word);
  recorded.run = failed ? *failed : find_run(word);
  if (word.empty() && !recorded.run.job && !fs::exists(fs::path(recorded.run.folder) / kFlightFile))
    recorded.run = newest_failed_run(kRunsFolder).value_or(recorded.run);
  const FoundRun& run = recorded.run;
  const fs::path folder = run.job ? run.job->path : run.folder;
  if (run.job) {
    recorded.flight =
        parse_flight(run.running() ? ask_for_flight(*run.job, kAnswerSeconds) : last_flight(*run.job), run.name);
  } else {
    const fs::path path = folder / kFlightFile;
    if (!fs::exists(path))
      throw usage_error(fmt::format(
          "{} has no {}: it did not fail, or its launcher was killed and `prun clean` has removed what it left; "
          "{} has its log",
          run.name, kFlightFile, (folder / kRunLog).string()));
    recorded.flight = parse_flight(read_all(path), path.string());
    recorded.failure = Json::parse(read_all(folder / kFailureFile), nullptr, false);
    if (!recorded.failure.is_object()) recorded.failure = nullptr;
  }
  try {
    recorded.job = written_out(parse_job(read_all(folder / kProgramFile)));
  } catch (Error& error) {
    throw error.prefix((folder / kProgramFile).string());
  }
  return recorded;
}

// Returns the age of an event on the recorder's clock.
std::string ago(const Flight& flight, uint64_t ns) { return human_seconds(flight.seconds_since(ns)) + " ago"; }

std::vector<std::string> last_ops(const Recorded& recorded, const FlightRank& rank) {
  const Program& program = recorded.job.program(rank.rank);
  std::vector<std::pair<OpEvent, size_t>> events;
  for (size_t s = 0; s < rank.streams.size(); ++s)
    for (const OpEvent& event : rank.streams[s].last) events.emplace_back(event, s);
  std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.first.end_ns < b.first.end_ns; });
  if (events.size() > kShownOps) events.erase(events.begin(), events.end() - kShownOps);
  std::vector<std::string> lines;
  for (const auto& [event, s] : events) {
    const Body& step = program.step();
    if (s >= step.streams.size() || event.op >= step.streams[static_cast<int>(s)].ops.size()) continue;
    const Stream& stream = step.streams[static_cast<int>(s)];
    lines.push_back(fmt::format("{:>12}  {:>9}  step {}, {}: {}", ago(recorded.flight, event.end_ns),
                                human_seconds(static_cast<double>(event.end_ns - event.begin_ns) / 1e9), event.step + 1,
                                stream.name, op_words(stream.ops[event.op])));
  }
  return lines;
}

std::string moment(const Recorded& recorded, const FlightRank& rank) {
  if (rank.phase != RunPhase::running || rank.streams.empty()) return "";
  const Program& program = recorded.job.program(rank.rank);
  const int body = static_cast<int>(std::min<size_t>(rank.body, program.bodies.size() - 1));
  return moment_text(program, body, rank.streams[0].step) + ": ";
}

int failed_rank(const Recorded& recorded) {
  const Json& failure = recorded.failure;
  return failure.is_object() && failure["who"].is_object() ? failure["who"].value("rank", -1) : -1;
}

// Returns the rank that holds up the others. Returns nullopt if a rank was lost, because the rank that the others
// waited for at that moment was not stuck.
std::optional<Holdup> holdup_of(const Recorded& recorded, const WhoWaits& waits) {
  std::optional<Holdup> holdup = waits.holdup(!recorded.run.running());
  const int lost = failed_rank(recorded);
  if (holdup && lost >= 0 && holdup->rank != lost && waits.of(lost).doing == Doing::ended) return std::nullopt;
  return holdup;
}

void print_text(const Recorded& recorded) {
  const WhoWaits waits(recorded.job, recorded.flight);
  const bool past = !recorded.run.running();
  const auto holdup = holdup_of(recorded, waits);
  fmt::print("{}: {}\n", recorded.run.name,
             recorded.run.running() ? "running"
             : recorded.run.job     ? "its launcher was killed, and the ranks with it; this is what it last saw"
                                    : "ended");
  if (recorded.failure.is_object())
    fmt::print("failed ({}, {}): {}\n", recorded.failure.value("code", 0), recorded.failure.value("name", ""),
               recorded.failure.value("what", ""));
  if (holdup) {
    fmt::print("{}\n", holdup->sentence);
    for (const std::string& line : holdup->chain) fmt::print("  {}\n", line);
  } else if (failed_rank(recorded) < 0) {
    fmt::print("no rank {} for another\n", past ? "waited" : "waits");
  }
  fmt::print("ranks:\n");
  for (const FlightRank& rank : recorded.flight.ranks) {
    fmt::print("  {:>4}  {}, pid {}: {}{}\n", rank.rank, rank.host, rank.pid, moment(recorded, rank),
               waits.words(waits.of(rank.rank)));
    if (rank.saving != 0)
      fmt::print("        beside it: writing a checkpoint after step {} for {}\n", rank.saving,
                 human_seconds(recorded.flight.seconds_since(rank.saving_ns)));
  }
  const int shown = holdup && holdup->rank >= 0 ? holdup->rank : failed_rank(recorded);
  if (const FlightRank* rank = recorded.flight.of(shown)) {
    const std::vector<std::string> lines = last_ops(recorded, *rank);
    if (!lines.empty()) fmt::print("the last ops that rank {} ended:\n{}\n", shown, join(lines, "\n"));
  }
}

const char* doing_name(Doing doing) {
  static constexpr const char* kNames[] = {"unknown", "ended",   "finished", "stopped",
                                           "silent",  "joining", "working",  "waiting"};
  return kNames[static_cast<size_t>(doing)];
}

void print_json(const Recorded& recorded) {
  const WhoWaits waits(recorded.job, recorded.flight);
  const auto holdup = holdup_of(recorded, waits);
  Json ranks = Json::array();
  for (const FlightRank& rank : recorded.flight.ranks) {
    const Activity activity = waits.of(rank.rank);
    ranks.push_back({{"rank", rank.rank},
                     {"node", rank.node},
                     {"host", rank.host},
                     {"pid", rank.pid},
                     {"doing", doing_name(activity.doing)},
                     {"words", waits.words(activity)},
                     {"seconds", recorded.flight.seconds_since(activity.since_ns)},
                     {"waits_for", activity.missing},
                     {"steps_done", rank.steps},
                     {"writing_checkpoint", rank.saving == 0 ? Json() : Json(rank.saving)}});
  }
  Json all = {{"run", recorded.run.name}, {"running", recorded.run.running()}, {"failure", recorded.failure}};
  all["culprit"] = holdup && holdup->rank >= 0 ? Json(holdup->rank) : Json();
  all["sentence"] = holdup ? Json(holdup->sentence) : Json();
  all["chain"] = holdup ? Json(holdup->chain) : Json::array();
  all["ranks"] = std::move(ranks);
  fmt::print("{}\n", all.dump(-1, ' ', false, Json::error_handler_t::replace));
}

class Explain final : public Command {
 public:
  void declare(OptionTable& /*table*/) override {}
  int run() override;
};

int Explain::run() {
  const Recorded recorded = read_recorded(one_operand("explain", line_.operands, "run"));
  line_.json ? print_json(recorded) : print_text(recorded);
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_explain() { return std::make_unique<Explain>(); }

}  // namespace prun
