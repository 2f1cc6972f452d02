// The rate omits the first step, which includes warm-up, if there are others.
#include "watch/summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "ir/op_cost.h"
#include "watch/progress.h"

namespace prun {
namespace {

// Steps of a queue device before it replays: enqueued op by op, captured, launched first.
constexpr uint64_t kWarmUp = 3;

std::string range_text(int64_t low, int64_t high) {
  const std::string least = human_bytes(low), greatest = human_bytes(high);
  return least == greatest ? least : least + " to " + greatest;
}

}  // namespace

std::string predicted_memory(const Job& job) {
  const auto [least, most] =
      std::minmax_element(job.classes.begin(), job.classes.end(),
                          [](const Program& a, const Program& b) { return a.arena_bytes < b.arena_bytes; });
  return range_text(least->arena_bytes, most->arena_bytes) + " a rank";
}

void Summary::add(const MergedStep& step) {
  if (steps_++ == 0) first_ = step;
  last_ = step;
  sum_ += step;
  skipped_ += step.skipped ? 1 : 0;
  if (step.evaluated()) add_evaluation(step);
  if (step.host_s > 0 && steps_ > kWarmUp) {
    replayed_++;
    replayed_sum_ += step;
  }
}

void Summary::add_evaluation(const MergedStep& evaluation) {
  if (evaluations_++ == 0) first_eval_loss_ = evaluation.eval_loss;
  last_eval_loss_ = evaluation.eval_loss;
  evaluation_s_ += evaluation.eval_s;
}

double Summary::steps_per_s() const {
  const bool more = steps_ > 1 && sum_.time_s > first_.time_s;
  return more ? static_cast<double>(steps_ - 1) / (sum_.time_s - first_.time_s)
              : static_cast<double>(steps_) / std::max(sum_.time_s, 1e-9);
}

// Describes the rank with the least free memory. Ranks that share a device count each other's use.
std::string Summary::device_text() const {
  const auto least = std::min_element(device_use_.begin(), device_use_.end(),
                                      [](const DeviceUse& a, const DeviceUse& b) { return a.free < b.free; });
  if (least == device_use_.end()) return "";
  return fmt::format("on device  {} arena, {} transports, {} kernels, {} before them (contexts); {} of {} left\n",
                     human_bytes(least->arena), human_bytes(least->transports), human_bytes(least->kernels),
                     human_bytes(least->before), human_bytes(least->free), human_bytes(least->total));
}

std::string Summary::text(const Job& job, const std::vector<int>& ranks, const std::vector<uint64_t>& peak_bytes,
                          double peak_flops) const {
  if (steps_ == 0 || job.classes.empty()) return "";
  const Program& program = job.program(ranks.front());
  std::string text = fmt::format("loss       {:.4f} -> {:.4f} over {}\n", first_.loss, last_.loss,
                                 counted(static_cast<int64_t>(steps_), "step"));
  if (skipped_ > 0)
    text +=
        fmt::format("skipped    {}, as gradients were not finite\n", counted(static_cast<int64_t>(skipped_), "step"));
  if (evaluations_ > 0)
    text += fmt::format("evaluated  {:.4f} -> {:.4f}, {}, {} in all\n", first_eval_loss_, last_eval_loss_,
                        counted(static_cast<int64_t>(evaluations_), "time"), human_seconds(evaluation_s_));
  text += fmt::format("time       {}", human_seconds(sum_.time_s));
  if (program.tokens_per_step > 0) {
    text += fmt::format(", {} {}/s", short_number(steps_per_s() * static_cast<double>(program.tokens_per_step)),
                        program.sample_word);
  }
  text += "\n";
  if (const double flops = steps_per_s() * model_flops(job); flops > 0) {
    text += "compute    " + short_number(flops, "FLOP/s");
    if (peak_flops > 0)
      text += fmt::format(", {:.1f}% of the peak of {} in bf16 (MFU)", 100 * flops / peak_flops,
                          short_number(peak_flops, "FLOP/s"));
    if (const double replicated = steps_per_s() * replicated_flops(job); replicated > 0)
      text += fmt::format("; {} more that other ranks compute, too", short_number(replicated, "FLOP/s"));
    text += "\n";
  }
  if (replayed_ > 0)
    text += fmt::format("device     {} of the host a step, idle {:.2f}% between steps\n",
                        human_seconds(replayed_sum_.host_s / static_cast<double>(replayed_)),
                        100 * replayed_sum_.idle_s / replayed_sum_.time_s);
  int64_t most_on_host = 0;
  for (const int rank : ranks) most_on_host = std::max(most_on_host, job.program(rank).host_arena_bytes);
  text += fmt::format("memory     {} predicted", predicted_memory(job));
  if (most_on_host > 0) text += fmt::format(" and {} on the host", human_bytes(most_on_host));
  uint64_t low = UINT64_MAX, high = 0;
  for (const uint64_t peak : peak_bytes) {
    if (peak == 0) continue;
    low = std::min(low, peak);
    high = std::max(high, peak);
  }
  if (high > 0) {
    text +=
        fmt::format(", {} taken (Pss, with code)", range_text(static_cast<int64_t>(low), static_cast<int64_t>(high)));
  }
  text += "\n" + device_text();
  if (sum_.comm_s > 0 && job.class_of_rank.size() > 1) {
    const double n = static_cast<double>(steps_);
    text += fmt::format("sent       {} a rank and step\n", human_bytes(static_cast<int64_t>(sum_.bytes_sent / n)));
    text += fmt::format("overlap    {:.0f}% of {} communication a step hidden behind compute\n",
                        100 * std::max(0.0, 1 - sum_.exposed_s / sum_.comm_s), human_seconds(sum_.comm_s / n));
  }
  if (!binding_.empty()) text += fmt::format("bound      each rank to its {}\n", binding_);
  return text;
}

}  // namespace prun
