// The parts of a step are means over ranks and sum to the step. So the differences of the parts explain why a candidate
// is slower than the best.
#include "tune/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace prun {
namespace {

constexpr size_t kExplained = 3, kShown = 10;
constexpr double kShownShare = 0.005;  // fraction of the step; smaller parts and differences are omitted

std::string bytes_text(double bytes) { return human_bytes(std::llround(bytes)); }

// Returns "compute 61.2 %, NVLink 4.0 %".
std::string parts_text(const Trial& trial) {
  std::vector<std::pair<std::string, double>> parts = trial.parts;
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> words;
  for (const auto& [name, seconds] : parts)
    if (seconds > kShownShare * trial.step_s)
      words.push_back(fmt::format("{} {:.1f} %", name, 100 * seconds / trial.step_s));
  return join(words, ", ");
}

std::string difference_text(double seconds) { return (seconds < 0 ? "-" : "+") + human_seconds(std::abs(seconds)); }

// Returns the differences of the parts from the best: "waiting +1.2 s, InfiniBand -0.3 s".
std::string why_slower(const Trial& trial, const Trial& best) {
  std::map<std::string, double> differences;
  for (const auto& [name, seconds] : trial.parts) differences[name] += seconds;
  for (const auto& [name, seconds] : best.parts) differences[name] -= seconds;
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto& [name, seconds] : differences)
    if (std::abs(seconds) > kShownShare * best.step_s) sorted.emplace_back(seconds, name);
  if (sorted.empty()) return "nearly the same";
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> words;
  words.reserve(sorted.size());
  for (const auto& [seconds, name] : sorted) words.push_back(fmt::format("{} {}", name, difference_text(seconds)));
  return join(words, ", ");
}

std::string slower_text(const Trial& trial, const Trial& best) {
  const double percent = 100 * (trial.step_s / best.step_s - 1);
  return fmt::format("{:.1f} % slower: {}", percent, why_slower(trial, best));
}

void print_trial(size_t place, const Tuned& tuned) {
  const Trial& trial = tuned.trials[place];
  fmt::print("{:>3}  {:>9} {:>9.1f} {:>5.1f} % {:>9}  {}\n", place + 1, human_seconds(trial.step_s),
             trial.tflops_per_device, 100 * trial.mfu, bytes_text(trial.peak_bytes), trial.text);
  if (place < kExplained)
    fmt::print("     {}; limited by {}; {} of memory are left\n     {}\n", parts_text(trial), trial.limit,
               bytes_text(trial.memory_bytes - trial.peak_bytes), trial.proof);
  if (place > 0) fmt::print("     {}\n", slower_text(trial, tuned.trials.front()));
}

nlohmann::ordered_json as_json(const Trial& trial, const Trial& best) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  for (const auto& [name, seconds] : trial.parts) parts[name] = seconds;
  return {{"settings", trial.settings},
          {"step_s", trial.step_s},
          {"estimate_s", trial.estimate_s},
          {"tflops_per_device", trial.tflops_per_device},
          {"mfu", trial.mfu},
          {"peak_bytes", trial.peak_bytes},
          {"estimate_bytes", trial.estimate_bytes},
          {"mesh", trial.mesh},
          {"limit", trial.limit},
          {"parts_s", parts},
          {"proof", trial.proof},
          {"why", &trial == &best ? parts_text(trial) : slower_text(trial, best)}};
}

}  // namespace

std::string left_out_text(const Tuned& tuned) {
  std::string text;
  if (!tuned.misfits.empty()) {
    const Trial& first = tuned.misfits.front();
    text += fmt::format("\n  {:>6}  do not fit in memory; the fastest, {} ({}{}), needs {} of {}",
                        grouped(std::ssize(tuned.misfits)), first.text, first.misfit.empty() ? "about " : "",
                        human_seconds(first.step_s), bytes_text(first.peak_bytes), bytes_text(first.memory_bytes));
  }
  for (const Trial& each : tuned.refuted) text += fmt::format("\n  {:>6}  {}: {}", 1, each.text, each.refuted);
  for (const RefusedCandidates& each : tuned.left_out)
    text += fmt::format("\n  {:>6}  {} ({})", grouped(each.count), each.why, each.example);
  return text;
}

std::string run_command_text(const JobSpec& job, const simulate::Cluster& cluster, const Trial& best) {
  const int ranks = job.ranks(), here = cluster.node_at(0).devices;
  std::string text = "prun " + shell_word(job.plan);
  if (ranks <= here || ranks % here != 0)
    text += fmt::format(" --nproc {}", ranks);
  else
    text += fmt::format(" --nproc {} --nnodes {} --node-rank I --rendezvous HOST:29400", here, ranks / here);
  for (const auto& each : {job.settings, best.settings})
    for (const auto& [name, value] : each) text += " --set " + shell_word(fmt::format("{}={}", name, value));
  return text;
}

void print_tuned(const JobSpec& job, const simulate::Cluster& cluster, const Tuned& tuned) {
  const int ranks = job.ranks();
  fmt::print("{}: {} of {} estimated for {} on {}, {} simulated\n\n", job.plan, grouped(tuned.estimated),
             counted(tuned.combinations, "combination"), counted(ranks, "rank"),
             cluster.name.empty() ? cluster.path : cluster.name, tuned.trials.size());
  fmt::print("{:>3}  {:>9} {:>9} {:>7} {:>9}\n", "", "step", "TFLOP/s", "MFU", "peak");
  for (size_t place = 0; place < std::min(kShown, tuned.trials.size()); ++place) print_trial(place, tuned);
  if (tuned.trials.size() > kShown) fmt::print("     and {} slower ones (--json)\n", tuned.trials.size() - kShown);
  const std::string left_out = left_out_text(tuned);
  if (!left_out.empty()) fmt::print("\nleft out:{}\n", left_out);
  fmt::print("\nrun it: {}\n", run_command_text(job, cluster, tuned.trials.front()));
}

void print_tuned_json(const JobSpec& job, const simulate::Cluster& cluster, const Tuned& tuned) {
  nlohmann::ordered_json best = nlohmann::ordered_json::array(), left_out = best, refuted = best;
  for (const Trial& each : tuned.trials) best.push_back(as_json(each, tuned.trials.front()));
  for (const RefusedCandidates& each : tuned.left_out)
    left_out.push_back({{"why", each.why}, {"count", each.count}, {"example", each.example}});
  for (const Trial& each : tuned.refuted) refuted.push_back({{"settings", each.settings}, {"why", each.refuted}});
  const nlohmann::ordered_json all = {{"ranks", job.ranks()},
                                      {"combinations", tuned.combinations},
                                      {"estimated", tuned.estimated},
                                      {"best", best},
                                      {"misfits", tuned.misfits.size()},
                                      {"refuted", refuted},
                                      {"left_out", left_out},
                                      {"command", run_command_text(job, cluster, tuned.trials.front())}};
  fmt::print("{}\n", all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace prun
