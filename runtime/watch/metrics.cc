// Numbers parse back to the same doubles; NaN and Inf, which JSON lacks, become null.
#include "watch/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ir/op_cost.h"

namespace prun {
namespace {

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

}  // namespace

std::string metrics_row(const MergedStep& step, const StepWork& work, uint64_t memory_bytes) {
  const double per_s = step.time_s > 0 ? 1 / step.time_s : 0, flops = work.flops * per_s;
  const int64_t done = static_cast<int64_t>(step.step) + 1;
  const int64_t tokens = work.begin.tokens + (done - work.begin.step) * work.tokens;
  std::string row = fmt::format("{{\"step\":{},\"loss\":{}", done, number(step.loss));
  for (size_t i = 0; i < work.named.size(); ++i) row += fmt::format(",\"{}\":{}", work.named[i], number(step.named[i]));
  row += fmt::format(",\"learning_rate\":{}", number(work.rate.at(static_cast<int64_t>(step.step))));
  if (work.clips) row += fmt::format(",\"grad_norm\":{}", number(step.norm));
  if (step.skipped) row += ",\"skipped\":true";
  row += fmt::format(",\"tokens\":{},\"time_s\":{},\"wall_time\":{:.6f},\"tokens_per_s\":{:.1f}", tokens,
                     number(step.time_s), step.wall_time, static_cast<double>(work.tokens) * per_s);
  row += fmt::format(",\"comm_s\":{},\"exposed_comm_s\":{}", number(step.comm_s), number(step.exposed_s));
  if (step.host_s == 0) row += fmt::format(",\"data_s\":{}", number(step.data_s));
  if (memory_bytes > 0) row += fmt::format(",\"memory_bytes\":{}", memory_bytes);
  if (work.flops > 0) row += fmt::format(",\"model_flops_per_s\":{:.6g}", flops);
  if (work.flops > 0 && work.peak_flops > 0) row += fmt::format(",\"mfu\":{:.4f}", flops / work.peak_flops);
  if (step.host_s > 0)
    row += fmt::format(",\"host_us\":{:.2f},\"idle\":{:.5f}", step.host_s * 1e6, step.idle_s * per_s);
  if (step.evaluated())
    row += fmt::format(",\"eval_loss\":{},\"eval_s\":{}", number(step.eval_loss), number(step.eval_s));
  for (size_t i = 0; step.evaluated() && i < work.eval_named.size(); ++i)
    row += fmt::format(",\"eval_{}\":{}", work.eval_named[i], number(step.eval_named[i]));
  return row + "}\n";
}

std::string evaluation_row(const MergedStep& step, const std::vector<std::string>& named) {
  std::string row =
      fmt::format("{{\"step\":0,\"wall_time\":{:.6f},\"eval_loss\":{}", step.wall_time, number(step.eval_loss));
  for (size_t i = 0; i < named.size(); ++i) row += fmt::format(",\"eval_{}\":{}", named[i], number(step.eval_named[i]));
  return row + fmt::format(",\"eval_s\":{}}}\n", number(step.eval_s));
}

void StepRows::begin(const RunningJob& job, double peak_flops) {
  job_ = &job;
  memory_.open(job.pids);
  const Program& program = job.program();
  const Schedule& schedule = program.schedule;
  work_ = {.tokens = program.tokens_per_step,
           .begin = schedule.begin,
           .flops = model_flops(job.job),
           .peak_flops = peak_flops,
           .rate = schedule.learning_rate};
  work_.named = step_names(program);
  work_.eval_named = evaluation_names(program);
  for (const Program& one : job.job.classes) work_.clips = work_.clips || one.step().norm >= 0;
}

// Includes the peaks that ended ranks left in their recorders.
uint64_t StepRows::memory_bytes() {
  uint64_t most = memory_.most();
  for (const RecorderHeader* recorder : job_->recorders) most = std::max(most, recorder->pss.load());
  return most;
}

void Metrics::started(const RunningJob& /*job*/) {
  file_.begin();
  if (!file_.remark().empty()) console_.warn(fmt::format("prun: {}\n", file_.remark()));
}

void Metrics::row(std::string_view row) {
  if (standard_stream(file_.output().path()) >= 0) console_.clear();
  file_.output().write(row);
}

}  // namespace prun
