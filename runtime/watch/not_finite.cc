#include "watch/not_finite.h"

#include <fmt/format.h>

#include <cmath>

namespace prun {

void NotFinite::started(const RunningJob& job) {
  if (!job.shown) return;
  for (const Program& program : job.job.classes) clips_ = clips_ || program.step().norm >= 0;
  told_ = told_ || job.program().step().loss < 0;  // a program without a loss prints its own output
}

void NotFinite::step(const MergedStep& step) {
  report(step);
  if (step.skipped) report_skipped(step);
}

void NotFinite::failed(const Failure& failure) {
  if (failure.code == static_cast<int>(Exit::non_finite)) failed_step_ = failure.step;
}

void NotFinite::report(const MergedStep& step) {
  const bool loss = !std::isfinite(step.loss), evaluation = step.evaluated() && !std::isfinite(step.eval_loss),
             norm = clips_ && !std::isfinite(step.norm);
  if (told_ || !(loss || evaluation || norm)) return;
  told_ = true;
  const double value = loss ? step.loss : norm ? step.norm : step.eval_loss;
  const char* const effect = loss || !norm       ? ""
                             : std::isnan(value) ? ", so nothing is clipped"
                                                 : ", so clipping leaves 0 or NaN of each gradient";
  console_.warn(fmt::format(
      "prun: the {} step {} is {}{}: --check-finite ends the run at the op that makes the first NaN or infinity\n",
      loss   ? "loss of"
      : norm ? "norm of the gradients of"
             : "evaluation after",
      step.step + 1, std::isnan(value) ? "NaN" : "infinite", effect));
}

// Prints a skipped step if their number is a power of two; every skipped step is an event.
void NotFinite::report_skipped(const MergedStep& step) {
  skipped_.push_back(static_cast<int64_t>(step.step));
  const size_t many = skipped_.size();
  if (!names_skipped_ || (many & (many - 1)) != 0) return;
  console_.warn(fmt::format("prun: step {} updated nothing: the norm of its gradients is {}{}\n", step.step + 1,
                            std::isnan(step.norm) ? "NaN" : "infinite",
                            many > 1 ? fmt::format(" ({} steps so far)", many) : ""));
}

}  // namespace prun
