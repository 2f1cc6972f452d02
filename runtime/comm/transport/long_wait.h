// Long waits: the part of their time that counts, and the ranks that they await, so that a job without progress can be
// explained.
#pragma once
#include <chrono>
#include <vector>

#include "prun/transport.h"

namespace prun {

// Lives on the stack around calls that may wait, and names the awaited ranks if the transport cannot. Costs two stores.
class Awaited {
 public:
  Awaited();
  virtual ~Awaited();
  Awaited(const Awaited&) = delete;
  virtual std::vector<int> ranks() const = 0;  // the awaited ranks of the job
  // Called periodically during a long wait; an exception ends the wait, but not its request.
  virtual void look_around() const {}

 private:
  const Awaited* outer_;
};

// The time during which this process runs. Waits are polled at most 10 ms apart, so a gap of more than a second means
// that this process was stopped, and does not count.
class AwakeTime {
 public:
  using Clock = std::chrono::steady_clock;
  Clock::duration until(Clock::time_point now) {
    if (now - last_ < std::chrono::seconds(1)) passed_ += now - last_;
    last_ = now;
    return passed_;
  }

 private:
  Clock::time_point last_ = Clock::now();
  Clock::duration passed_{0};
};

class LongWait {
 public:
  using Clock = std::chrono::steady_clock;
  // Called after each PRUN_AGAIN; `culprit` is the awaited rank of the job according to the transport, or -1.
  void go_on(Clock::time_point now, int culprit);
  // Reports the end of a successful wait. A failed one remains recorded, as evidence.
  void end(prun_status status);

 private:
  Clock::time_point next_{};
  bool told_ = false;
};

}  // namespace prun
