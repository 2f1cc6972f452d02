// Numbers read back as the same doubles; NaN and Inf, which JSON lacks, become null.
#include "metrics.h"

#include <fmt/format.h>

#include <cmath>

namespace prun {
namespace {

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

}  // namespace

std::string metrics_line(const MergedStep& step, const StepWork& work) {
  const double per_s = step.time_s > 0 ? 1 / step.time_s : 0, flops = work.flops * per_s;
  std::string compute;
  if (work.flops > 0) compute = fmt::format(",\"model_flops_per_s\":{:.6g}", flops);
  if (work.flops > 0 && work.peak_flops > 0) compute += fmt::format(",\"mfu\":{:.4f}", flops / work.peak_flops);
  std::string device;
  if (step.host_s > 0)
    device = fmt::format(",\"host_us\":{:.2f},\"idle\":{:.5f}", step.host_s * 1e6, step.idle_s * per_s);
  const std::string evaluation =
      step.evaluated() ? fmt::format(",\"eval_loss\":{},\"eval_s\":{}", number(step.eval_loss), number(step.eval_s))
                       : "";
  return fmt::format(
      "{{\"step\":{},\"loss\":{},\"time_s\":{},\"tokens_per_s\":{:.1f},\"comm_s\":{},\"exposed_comm_s\":{}{}{}{}}}\n",
      step.step, number(step.loss), number(step.time_s), static_cast<double>(work.tokens) * per_s, number(step.comm_s),
      number(step.exposed_s), compute, device, evaluation);
}

void Metrics::add(const MergedStep& step, const StepWork& work) { file_.write(metrics_line(step, work)); }

}  // namespace prun
