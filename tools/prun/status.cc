// prun status [RUN]: lists this user's jobs on this machine, one line each, or the ranks of one job. On a terminal it
// redraws every second until the jobs have ended.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/text.h"
#include "job_options.h"
#include "standard_streams.h"
#include "watch/find_run.h"

namespace prun {
namespace {

using Json = nlohmann::ordered_json;

std::string label(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

std::string labels(const Json& job) {
  return fmt::format("run=\"{}\",plan=\"{}\",pid=\"{}\"", label(job.value("id", "")), label(job.value("plan", "")),
                     job.value("pid", 0));
}

struct Gauge {
  const char* name;
  const char* key;  // key in a job's status
  const char* help;
};
constexpr Gauge kOfJobs[] = {
    {"prun_step", "step", "steps done"},
    {"prun_steps", "steps", "steps of the whole run"},
    {"prun_loss", "loss", "loss of the last step"},
    {"prun_eval_loss", "eval_loss", "loss of the last evaluation"},
    {"prun_tokens_per_second", "tokens_per_s", "tokens a second, or samples where data are no tokens"},
    {"prun_step_seconds", "step_s", "time of a step"},
    {"prun_communication_seconds", "comm_s", "time in communication of the last step, mean over ranks"},
    {"prun_exposed_communication_seconds", "exposed_comm_s", "of it, time in which compute waited"},
    {"prun_remaining_seconds", "eta_s", "time that is left at this pace"},
    {"prun_checkpoint_step", "checkpoint", "step of the last checkpoint that is whole"},
    {"prun_updated_seconds", "updated", "when the launcher said this, in seconds since 1970"},
};

// Returns running jobs in Prometheus' text format (https://prometheus.io/docs/instrumenting/exposition_formats), for
// node_exporter's textfile collector; no port is opened.
std::string prometheus_text(const std::vector<Json>& jobs) {
  std::string text;
  const auto head = [&](const char* name, const char* help) {
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} gauge\n", name, help);
  };
  for (const Gauge& gauge : kOfJobs) {
    std::string rows;
    for (const Json& job : jobs)
      if (job.contains(gauge.key) && job[gauge.key].is_number())
        rows += fmt::format("{}{{{}}} {}\n", gauge.name, labels(job), job[gauge.key].get<double>());
    if (rows.empty()) continue;
    head(gauge.name, gauge.help);
    text += rows;
  }
  if (jobs.empty()) return text;
  head("prun_rank_state", "1 for the state in which a rank is");
  for (const Json& job : jobs)
    for (const Json& rank : job["ranks"])
      text += fmt::format("prun_rank_state{{{},rank=\"{}\",host=\"{}\",state=\"{}\"}} 1\n", labels(job),
                          rank.value("rank", 0), label(rank.value("host", "")), rank.value("state", ""));
  head("prun_rank_seconds_in_op", "how long a rank has been in the op that it is in");
  for (const Json& job : jobs)
    for (const Json& rank : job["ranks"])
      text += fmt::format("prun_rank_seconds_in_op{{{},rank=\"{}\"}} {}\n", labels(job), rank.value("rank", 0),
                          rank.value("seconds", 0.0));
  return text;
}

using Json = nlohmann::ordered_json;

// Marks the status of a launcher that is stopped, or waits for a disk, as outdated.
Json with_age(Json status) {
  constexpr double kSilent = 5;
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const double age = now - status.value("updated", now);
  if (age > kSilent) status["state"] = fmt::format("its launcher has been silent for {}", human_seconds(age));
  return status;
}

std::vector<Json> running_jobs(const std::string& word) {
  std::vector<Json> jobs;
  if (!word.empty()) {
    const FoundRun run = find_run(word);
    if (!run.running())
      throw usage_error(
          fmt::format("{} does not run; prun explain {} and prun runs tell how it ended", run.name, word));
    if (run.job->status.is_object()) jobs.push_back(with_age(run.job->status));
    return jobs;
  }
  for (PublishedJob& job : published_jobs())
    if (job.running && job.status.is_object()) jobs.push_back(with_age(std::move(job.status)));
  return jobs;
}

std::string number_text(const Json& job, const char* key, const char* format, const char* none = "-") {
  if (!job.contains(key) || !job[key].is_number()) return none;
  return fmt::format(fmt::runtime(format), job[key].get<double>());
}

std::string seconds_text(const Json& job, const char* key) {
  return job.contains(key) && job[key].is_number() ? human_seconds(job[key].get<double>()) : "-";
}

std::string rate_text(const Json& job) {
  return job.contains("tokens_per_s") && job["tokens_per_s"].is_number()
             ? short_number(job["tokens_per_s"].get<double>())
             : "-";
}

std::string job_line(const Json& job) {
  return fmt::format(
      "{:>8}  {:<28} {:>5}  {:>15}  {:>8}  {:>9}  {:>9}  {}\n", job.value("pid", 0), job.value("plan", ""),
      job["ranks"].size(), fmt::format("{}/{}", job.value("step", int64_t{0}), job.value("steps", int64_t{0})),
      number_text(job, "loss", "{:.4f}"), rate_text(job), seconds_text(job, "eta_s"), job.value("state", ""));
}

std::string remarks(const Json& job) {
  std::string text;
  if (job["holdup"].is_string()) text += fmt::format("          {}\n", job["holdup"].get<std::string>());
  for (const Json& rank : job["slow"])
    text += fmt::format("          rank {} is slow: the others wait for it\n", rank.get<int>());
  if (job["writing_checkpoint"].is_number())
    text += fmt::format("          a checkpoint after step {} is being written\n",
                        job["writing_checkpoint"].get<int64_t>());
  return text;
}

constexpr const char* kHead =
    "     PID  PLAN                         RANKS             STEP      LOSS   TOKENS/S       LEFT  STATE\n";

std::string table(const std::vector<Json>& jobs, bool ranks) {
  if (jobs.empty()) return "no job of yours runs here\n";
  std::string text = kHead;
  for (const Json& job : jobs) {
    text += job_line(job) + remarks(job);
    if (!ranks) continue;
    text += "\n    RANK  HOST                  PID  STEPS DONE  AT\n";
    for (const Json& rank : job["ranks"])
      text += fmt::format("{:>8}  {:<16} {:>8}  {:>10}  {}\n", rank.value("rank", 0), rank.value("host", ""),
                          rank.value("pid", 0), rank.value("steps_done", int64_t{0}), rank.value("words", ""));
  }
  return text;
}

// Truncates the text to the screen, because wrapped or scrolled lines could not be erased.
std::string cut(const std::string& text, size_t width, size_t height) {
  std::string result;
  size_t lines = 0;
  for (const std::string& line : split(text, '\n')) {
    if (++lines > height) break;
    result += line.substr(0, width) + "\n";
  }
  return result;
}

void draw_live(const std::string& word) {
  for (size_t drawn = 0;; std::this_thread::sleep_for(std::chrono::seconds(1))) {
    std::vector<Json> jobs;
    try {
      jobs = running_jobs(word);
    } catch (const Error&) {
      if (drawn == 0) throw;  // an error after the first drawing means that the job has ended
    }
    winsize size{};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    const std::string text = cut(table(jobs, !word.empty() || jobs.size() == 1), std::max<size_t>(size.ws_col, 40) - 1,
                                 std::max<size_t>(size.ws_row, 10) - 1);
    if (drawn > 0) fmt::print("\x1b[{}A\x1b[J", drawn);
    fmt::print("{}", text);
    flush_output();
    drawn = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    if (jobs.empty()) return;
  }
}

class StatusCommand final : public Command {
 public:
  void declare(OptionTable& table) override;
  int run() override;

 private:
  bool prometheus_ = false;
};

void StatusCommand::declare(OptionTable& table) {
  table.flag("--prometheus", prometheus_, "as Prometheus' text format");
}

int StatusCommand::run() {
  const std::string word = one_operand("status", line_.operands, "run");
  if (line_.json && prometheus_) throw usage_error("--json or --prometheus, not both");
  if (prometheus_) {
    fmt::print("{}", prometheus_text(running_jobs(word)));
  } else if (line_.json) {
    fmt::print("{}\n", Json(running_jobs(word)).dump(-1, ' ', false, Json::error_handler_t::replace));
  } else if (isatty(STDOUT_FILENO) == 1) {
    draw_live(word);
  } else {
    fmt::print("{}", table(running_jobs(word), !word.empty()));
  }
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_status() { return std::make_unique<StatusCommand>(); }

}  // namespace prun
