// Reports the first loss, gradient norm or evaluation that is not finite, and steps without an update; records both for
// restarts.
#pragma once
#include <cstdint>
#include <vector>

#include "watch/console.h"
#include "watch/view.h"
#include "watch/watch_spec.h"

namespace prun {

class NotFinite final : public View {
 public:
  NotFinite(const WatchSpec& spec, Console& console)
      : console_(console), names_skipped_(spec.names_skipped), told_(spec.explains_non_finite) {}
  void started(const RunningJob& job) override;
  void step(const MergedStep& step) override;
  void failed(const Failure& failure) override;

  const std::vector<int64_t>& skipped_steps() const { return skipped_; }
  int64_t failed_step() const { return failed_step_; }  // step that ended the attempt; -1 = another cause ended it

 private:
  void report(const MergedStep& step);
  void report_skipped(const MergedStep& step);

  Console& console_;
  bool names_skipped_, told_;
  bool clips_ = false;  // the program computes a gradient norm
  std::vector<int64_t> skipped_;
  int64_t failed_step_ = -1;
};

}  // namespace prun
