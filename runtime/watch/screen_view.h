// The screen of a run: a headline, progress as lines or a live line, and the summary.
#pragma once
#include <cstdint>
#include <vector>

#include "watch/console.h"
#include "watch/progress.h"
#include "watch/summary.h"
#include "watch/view.h"
#include "watch/watch_spec.h"

namespace prun {

class ScreenView final : public View {
 public:
  // `peak_flops`: sum over all devices of the job; 0 = unknown.
  ScreenView(const WatchSpec& spec, Console& console, double peak_flops);
  void started(const RunningJob& job) override;
  void tick() override;
  void before_steps(const MergedStep& evaluation) override;
  void step(const MergedStep& step) override;
  void flush() override;
  void ended(int exit_code, bool begins_again) override;

 private:
  void announce_transports();
  void announce_checkpoint(bool last);

  const WatchSpec& spec_;
  Console& console_;
  double peak_flops_;
  const RunningJob* job_ = nullptr;
  Progress progress_;
  Summary summary_;
  bool told_transports_ = false;
  int64_t announced_ = 0;    // step of the checkpoint that was shown last
  double announced_at_ = 0;  // when, as wall_time()
};

}  // namespace prun
