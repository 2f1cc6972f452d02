// The rate leaves out the first step, which pays for warming up, when there are others.
#include "summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "ir/model_flops.h"
#include "progress.h"

namespace prun {
namespace {

constexpr uint64_t kWarmUp =
    3;  // steps of a queue device that are not yet replayed: enqueued op by op, captured, first launch

}  // namespace

void Summary::add(const MergedStep& step) {
  if (steps_ == 0) {
    first_loss_ = step.loss;
    first_time_s_ = step.time_s;
  }
  steps_++;
  if (step.evaluated()) {
    if (evaluations_ == 0) first_eval_loss_ = step.eval_loss;
    evaluations_++;
    last_eval_loss_ = step.eval_loss;
    eval_s_ += step.eval_s;
  }
  if (step.host_s > 0 && steps_ > kWarmUp) {
    replayed_++;
    host_s_ += step.host_s;
    idle_s_ += step.idle_s;
    replayed_s_ += step.time_s;
  }
  last_loss_ = step.loss;
  time_s_ += step.time_s;
  comm_s_ += step.comm_s;
  exposed_s_ += step.exposed_s;
  bytes_ += step.bytes_sent;
}

double Summary::steps_per_s() const {
  const bool more = steps_ > 1 && time_s_ > first_time_s_;
  return more ? static_cast<double>(steps_ - 1) / (time_s_ - first_time_s_)
              : static_cast<double>(steps_) / std::max(time_s_, 1e-9);
}

// Of the rank that has left the least. Ranks that share a device count what the others take as well.
std::string Summary::device_text() const {
  const auto least = std::min_element(device_use_.begin(), device_use_.end(),
                                      [](const DeviceUse& a, const DeviceUse& b) { return a.free < b.free; });
  if (least == device_use_.end()) return "";
  return fmt::format("on device  {} arena, {} transports, {} kernels, {} before them (contexts); {} of {} left\n",
                     human_bytes(least->arena), human_bytes(least->transports), human_bytes(least->kernels),
                     human_bytes(least->before), human_bytes(least->free), human_bytes(least->total));
}

std::string flops_text(double flops_per_s) {
  constexpr const char* kUnits[] = {"FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s", "EFLOP/s"};
  size_t unit = 0;
  while (flops_per_s >= 999.5 && unit < 6) flops_per_s /= 1000, ++unit;
  const int digits = flops_per_s < 9.995 ? 2 : flops_per_s < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", flops_per_s, digits, kUnits[unit]);
}

std::string Summary::text(const Job& job, const std::vector<int>& ranks, const std::vector<uint64_t>& peak_bytes,
                          double peak_flops) const {
  if (steps_ == 0 || job.classes.empty()) return "";
  const Program& program = job.program(ranks.front());
  std::string text = fmt::format("loss       {:.4f} -> {:.4f} over {} step{}\n", first_loss_, last_loss_, steps_,
                                 steps_ == 1 ? "" : "s");
  if (evaluations_ > 0)
    text += fmt::format("evaluated  {:.4f} -> {:.4f}, {} time{}, {} in all\n", first_eval_loss_, last_eval_loss_,
                        evaluations_, evaluations_ == 1 ? "" : "s", human_seconds(eval_s_));
  text += fmt::format("time       {}", human_seconds(time_s_));
  if (program.tokens_per_step > 0) {
    text += fmt::format(", {} {}/s", short_number(steps_per_s() * static_cast<double>(program.tokens_per_step)),
                        program.sample_word);
  }
  text += "\n";
  if (const double flops = steps_per_s() * model_flops(job); flops > 0) {
    text += "compute    " + flops_text(flops);
    if (peak_flops > 0)
      text +=
          fmt::format(", {:.1f}% of the peak of {} in bf16 (MFU)", 100 * flops / peak_flops, flops_text(peak_flops));
    text += "\n";
  }
  if (replayed_ > 0)
    text += fmt::format("device     {} of the host a step, idle {:.2f}% between steps\n",
                        human_seconds(host_s_ / static_cast<double>(replayed_)), 100 * idle_s_ / replayed_s_);
  int64_t most = 0, most_on_host = 0;
  for (const int rank : ranks) {
    most = std::max(most, job.program(rank).arena_bytes);
    most_on_host = std::max(most_on_host, job.program(rank).host_arena_bytes);
  }
  text += fmt::format("memory     {} a rank predicted", human_bytes(most));
  if (most_on_host > 0) text += fmt::format(" and {} on the host", human_bytes(most_on_host));
  uint64_t low = UINT64_MAX, high = 0;
  for (const uint64_t peak : peak_bytes) {
    if (peak == 0) continue;
    low = std::min(low, peak);
    high = std::max(high, peak);
  }
  if (high > 0) {
    const std::string least = human_bytes(static_cast<int64_t>(low)),
                      greatest = human_bytes(static_cast<int64_t>(high));
    text += fmt::format(", {} taken (Pss, with code)", least == greatest ? least : least + " to " + greatest);
  }
  text += "\n" + device_text();
  if (comm_s_ > 0 && job.class_of_rank.size() > 1) {
    const double n = static_cast<double>(steps_);
    text += fmt::format("sent       {} a rank and step\n", human_bytes(static_cast<int64_t>(bytes_ / n)));
    text += fmt::format("overlap    {:.0f}% of {} communication a step hidden behind compute\n",
                        100 * std::max(0.0, 1 - exposed_s_ / comm_s_), human_seconds(comm_s_ / n));
  }
  return text;
}

}  // namespace prun
