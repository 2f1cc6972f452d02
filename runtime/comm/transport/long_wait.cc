#include "comm/transport/long_wait.h"

#include "comm/transport/job_state.h"

namespace prun {
namespace {

constexpr auto kLong = std::chrono::milliseconds(100);
constexpr auto kAgain = std::chrono::milliseconds(250);

thread_local const Awaited* innermost = nullptr;

}  // namespace

Awaited::Awaited() : outer_(innermost) { innermost = this; }
Awaited::~Awaited() { innermost = outer_; }

void LongWait::go_on(Clock::time_point now, int culprit) {
  if (next_ == Clock::time_point{}) next_ = now + kLong;
  if (now < next_) return;
  next_ = now + kAgain;
  if (innermost != nullptr) innermost->look_around();
  if (culprit < 0 && innermost == nullptr) return;
  told_ = true;
  report_waiting(culprit >= 0 ? std::vector<int>{culprit} : innermost->ranks());
}

void LongWait::end(prun_status status) {
  if (told_ && status == PRUN_OK) report_waiting({});
}

}  // namespace prun
