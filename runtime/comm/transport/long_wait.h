// Long waits: how much of them counts, and whom they are for, so that a job in which nothing moves can be explained.
#pragma once
#include <chrono>
#include <vector>

#include "prun/transport.h"

namespace prun {

// On the stack around calls that may wait: who is waited for where the transport cannot say. Costs two stores.
class Awaited {
 public:
  Awaited();
  virtual ~Awaited();
  Awaited(const Awaited&) = delete;
  virtual std::vector<int> ranks() const = 0;  // of the job
  // Called now and then while the wait is long; what it throws ends the wait, whose request lives on.
  virtual void look_around() const {}

 private:
  const Awaited* outer_;
};

// Time that passes while this process runs. Between two looks at a wait lie at most 10 ms: where it was more than a
// second this process was stopped, which is nobody's fault.
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
  // After each PRUN_AGAIN; `culprit` is a rank of the job that the transport says it waits for, or -1.
  void go_on(Clock::time_point now, int culprit);
  // A wait that fails is left as it stands: its end is told, too.
  void end(prun_status status);

 private:
  Clock::time_point next_{};
  bool told_ = false;
};

}  // namespace prun
