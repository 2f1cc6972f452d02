// Numbers are printed so that they read back as the same doubles; NaN and Inf, which JSON has not, become null.
#include "metrics.h"

#include <fmt/format.h>

#include <cmath>

namespace prun {
namespace {

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

}  // namespace

std::string metrics_line(const MergedStep& step, int64_t tokens_per_step) {
  const double rate = step.time_s > 0 ? static_cast<double>(tokens_per_step) / step.time_s : 0;
  const std::string evaluation =
      step.evaluated() ? fmt::format(",\"eval_loss\":{},\"eval_s\":{}", number(step.eval_loss), number(step.eval_s))
                       : "";
  return fmt::format(
      "{{\"step\":{},\"loss\":{},\"time_s\":{},\"tokens_per_s\":{:.1f},\"comm_s\":{},\"exposed_comm_s\":{}{}}}\n",
      step.step, number(step.loss), number(step.time_s), rate, number(step.comm_s), number(step.exposed_s), evaluation);
}

void Metrics::add(const MergedStep& step, int64_t tokens_per_step) { file_.write(metrics_line(step, tokens_per_step)); }

}  // namespace prun
