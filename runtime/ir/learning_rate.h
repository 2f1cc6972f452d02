// The learning rate as a function of the step, which executor and interpreter write to the step table.
//
// Equals torch.optim.lr_scheduler.LambdaLR with the usual get_cosine_schedule_with_warmup,
// get_linear_schedule_with_warmup and get_constant_schedule_with_warmup. Surprising fact: with a warm-up, the rate of
// step 0 is 0, in PyTorch as here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace prun {

// Decay after the warm-up; constant and warmup have none.
enum class RateKind : uint8_t { constant, warmup, linear, cosine };
std::string_view rate_kind_name(RateKind kind);

struct LearningRate {
  double peak = 0;
  RateKind kind = RateKind::constant;
  int64_t warmup = 0;  // steps of the rise from 0 to the peak
  int64_t steps = 0;   // linear, cosine: first step with the rate `least`, counted from 0
  double least = 0;

  // Returns the rate of step t, counted from 0. During the warm-up w: peak · t/w. Then, with p = min(1, (t − w) /
  // (steps − w)): least + (peak − least) · (1 − p) if linear, · (1 + cos πp)/2 if cosine.
  double at(int64_t step) const;
  std::string text() const;  // complete: "cosine, peak 0.0003, warmup 10, over 100 steps, least 0"
};

}  // namespace prun
