// Operands that the kernels of all optimizers share: the clip coefficient, and the settings of ranges of elements.
#pragma once
#include <cfloat>
#include <string>
#include <vector>

#include "kernels/cpu/ops/elementwise.h"
#include "prun/sdk/update_ranges.h"

namespace prun::cpu {

// Splits the clip coefficient into two factors. The first factor of a subnormal coefficient is 2^64 times as large,
// because the loops flush subnormal numbers to zero.
struct Clip {
  float first = 1, second = 1;

  explicit Clip(const float* coefficient) {
    if (coefficient == nullptr) return;
    const bool tiny = *coefficient < FLT_MIN;
    first = tiny ? *coefficient * 0x1p64f : *coefficient;
    second = tiny ? 0x1p-64f : 1.0f;
  }
  PRUN_INLINE float of(float grad) const { return grad * first * second; }
};

// Returns the settings of the op's elements. `decay`: the default.
inline std::vector<sdk::UpdateRange> update_ranges_of(const OpView& view, int64_t n, double decay) {
  const Attrs& a = view.attrs();
  if (!a.has("piece_starts")) return {{0, n, a.number("lr_factor", 1), a.number("weight_decay", decay)}};
  const std::vector<int64_t> starts = a.integers("piece_starts");
  const std::vector<double> factors = a.numbers("piece_lr_factors"), decays = a.numbers("piece_weight_decays");
  const int64_t offset = view.share("axis").index * a.integer("shard");
  PRUN_CHECK(
      factors.size() == starts.size() && decays.size() == starts.size() && !starts.empty() && starts.front() <= offset,
      std::to_string(starts.size()));
  return sdk::update_ranges(starts, factors, decays, offset, n);
}

}  // namespace prun::cpu
