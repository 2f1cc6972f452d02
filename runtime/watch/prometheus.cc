#include "watch/prometheus.h"

#include <fmt/format.h>

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
  const char* key;  // of a job
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

}  // namespace

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

}  // namespace prun
