// The learning rate as a function of the step, which executor and interpreter put into the step table.
//
// As torch.optim.lr_scheduler.LambdaLR with the usual get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup
// and get_constant_schedule_with_warmup. Surprising fact, theirs too: with a warm-up, step 0 has the rate 0.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace prun {

// How the rate goes on after the warm-up; constant and warmup: it stays.
enum class RateKind : uint8_t { constant, warmup, linear, cosine };
std::string_view rate_kind_name(RateKind kind);

struct LearningRate {
  double peak = 0;
  RateKind kind = RateKind::constant;
  int64_t warmup = 0;  // steps in which it rises from 0 to the peak
  int64_t steps = 0;   // linear, cosine: the step, counted from 0, from which on it is `least`
  double least = 0;

  // Of step t, from 0. Below the warm-up w: peak · t/w. Then, with p = min(1, (t − w) / (steps − w)), least + (peak −
  // least) · (1 − p) or · (1 + cos πp)/2.
  double at(int64_t step) const;
  std::string text() const;  // "cosine, peak 0.0003, warmup 10, over 100 steps, least 0": what tells two apart
};

}  // namespace prun
