// In the timed loop stands nothing but the call; how many calls a sample has, and how many samples there are, follows
// from a short measurement, by rank 0's clock.
#include "bench/measure.h"

#include <algorithm>
#include <chrono>

namespace prun {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double of_first(Communicator& group, double value) {
  CollCall call;
  call.kind = CollKind::broadcast;
  call.dtype = Dtype::f64;
  call.send = call.recv = &value;
  call.count = 1;
  group.run(call);
  return value;
}

void barrier(Communicator& group) { group.run(CollCall{}); }

class Stopwatch {
 public:
  Stopwatch(const Timed& side, const BenchSettings& settings) : side_(side) {
    for (int i = 0; i < settings.warmup; ++i) side.call();
    plan(settings);
  }
  int samples() const { return samples_; }

  void sample() {
    barrier(*side_.group);
    const double start = now();
    for (int i = 0; i < calls_; ++i) side_.call();
    times_.push_back(slowest_of(*side_.group, (now() - start) / calls_));
  }

  Timing result() {
    std::sort(times_.begin(), times_.end());
    return {times_[times_.size() / 2], times_.front(), times_.back(), static_cast<int>(times_.size()), calls_};
  }

 private:
  void plan(const BenchSettings& settings) {
    constexpr double kMostCalls = 20000, kLeastSamples = 3;
    samples_ = settings.samples;
    calls_ = settings.iters;
    if (calls_ > 0) return;
    barrier(*side_.group);
    const double start = now();
    int tried = 0;
    do {
      side_.call();
      ++tried;
    } while (of_first(*side_.group, now() - start) < settings.budget_s * 0.05 && tried < 1000);
    const double one = of_first(*side_.group, (now() - start) / tried);
    calls_ = static_cast<int>(std::clamp(settings.budget_s / samples_ / one, 1.0, kMostCalls));
    const double fit = settings.budget_s / (calls_ * one);
    samples_ =
        static_cast<int>(std::clamp(fit, std::min<double>(kLeastSamples, samples_), static_cast<double>(samples_)));
  }

  const Timed& side_;
  int calls_ = 1, samples_ = 1;
  std::vector<double> times_;
};

}  // namespace

std::vector<Timing> time_in_turn(const std::vector<Timed>& sides, const BenchSettings& settings) {
  std::vector<Stopwatch> watches;
  for (const Timed& side : sides) watches.emplace_back(side, settings);
  int samples = 0;
  for (const Stopwatch& watch : watches) samples = std::max(samples, watch.samples());
  for (int s = 0; s < samples; ++s) {
    for (Stopwatch& watch : watches) {
      if (s < watch.samples()) watch.sample();
    }
  }
  std::vector<Timing> timings;
  for (Stopwatch& watch : watches) timings.push_back(watch.result());
  return timings;
}

double slowest_of(Communicator& group, double value) {
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.dtype = Dtype::f64;
  call.redop = RedOp::max;
  call.send = call.recv = &value;
  call.count = 1;
  group.run(call);
  return value;
}

int64_t sum_of(Communicator& group, int64_t value) {
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.dtype = Dtype::i64;
  call.send = call.recv = &value;
  call.count = 1;
  group.run(call);
  return value;
}

}  // namespace prun
