// The timed loop contains only the calls and one wait for all of them. A short measurement by rank 0's clock determines
// the numbers of calls and samples.
#include "bench/measure.h"

#include <algorithm>
#include <chrono>

namespace prun {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class T>
T agreed(Communicator& group, CollKind kind, RedOp redop, Dtype dtype, T value) {
  CollCall call;
  call.kind = kind;
  call.dtype = dtype;
  call.redop = redop;
  call.send = call.recv = &value;
  call.count = 1;
  group.run(call);
  return value;
}

double of_first(Communicator& group, double value) {
  return agreed(group, CollKind::broadcast, RedOp::sum, Dtype::f64, value);
}

void barrier(Communicator& group) { group.run(CollCall{}); }

class Stopwatch {
 public:
  Stopwatch(const Timed& side, const BenchSettings& settings)
      : side_(side),
        fixed_(settings.iters > 0),
        left_(settings.samples),
        share_s_(settings.budget_s / settings.samples) {
    for (int i = 0; i < settings.warmup; ++i) side.call();
    side.wait();
    calls_ = fixed_ ? settings.iters : fitting_calls();
  }

  // Returns false if all samples are taken. Decides from all-reduced values, so all members decide alike.
  bool sample() {
    if (left_ == 0) return false;
    barrier(*side_.group);
    const double start = now();
    for (int i = 0; i < calls_; ++i) side_.call();
    side_.wait();
    const double one = slowest_of(*side_.group, (now() - start) / calls_);
    times_.push_back(one);
    --left_;
    if (!fixed_) pace(one);
    return true;
  }

  Timing result() {
    std::sort(times_.begin(), times_.end());
    return {times_[times_.size() / 2], times_.front(), times_.back(), static_cast<int>(times_.size()), calls_};
  }

 private:
  int calls_of(double one) const {
    constexpr double kMost = 5000;
    return static_cast<int>(std::clamp(share_s_ / one, 1.0, kMost));
  }

  int fitting_calls() {
    barrier(*side_.group);
    const double start = now(), enough = share_s_ * left_ * 0.05;
    int tried = 0;
    do {
      side_.call();
      side_.wait();
      ++tried;
    } while (of_first(*side_.group, now() - start) < enough && tried < 1000);
    return calls_of(of_first(*side_.group, (now() - start) / tried));
  }

  // Adapts to calls that become up to a thousand times slower than the first ones, for example if ranks share a core.
  void pace(double one) {
    constexpr size_t kLeast = 3;
    spent_s_ += one * calls_;
    const double budget = share_s_ * (left_ + static_cast<double>(times_.size()));
    if (times_.size() >= kLeast && spent_s_ > budget) left_ = 0;
    if (one * calls_ > 2 * share_s_) calls_ = calls_of(one);
  }

  const Timed& side_;
  bool fixed_;  // set by --iters
  int calls_ = 1, left_;
  double share_s_, spent_s_ = 0;  // share_s_: time of a sample
  std::vector<double> times_;
};

}  // namespace

std::vector<Timing> time_in_turn(const std::vector<Timed>& sides, const BenchSettings& settings) {
  std::vector<Stopwatch> watches;
  for (const Timed& side : sides) watches.emplace_back(side, settings);
  for (bool more = true; more;) {
    more = false;
    for (Stopwatch& watch : watches) more |= watch.sample();
  }
  std::vector<Timing> timings;
  for (Stopwatch& watch : watches) timings.push_back(watch.result());
  return timings;
}

double slowest_of(Communicator& group, double value) {
  return agreed(group, CollKind::all_reduce, RedOp::max, Dtype::f64, value);
}

int64_t sum_of(Communicator& group, int64_t value) {
  return agreed(group, CollKind::all_reduce, RedOp::sum, Dtype::i64, value);
}

}  // namespace prun
