// The candidates worth simulating: estimates of all combinations, or, if there are too many, of those near the best.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "predict/estimate.h"
#include "predict/search_space.h"

namespace prun {

struct Ranked {
  Combination combination;
  Estimate estimate;
  size_t plan = 0;    // equal for combinations that record the same plan
  std::string wrong;  // reason why there is no such plan; "" = there is one
  bool fits() const { return estimate.peak_bytes <= kRoughly * estimate.memory_bytes; }
  static constexpr double kRoughly = 1.1;  // tolerance, because an estimate of memory may be off by a tenth
};

// Estimates candidates, in their order.
using EstimateAll = std::function<std::vector<Ranked>(const std::vector<Combination>& combinations)>;

// Returns at most `most` candidates: the fastest that fit first, then those that do not fit by missing memory, then
// invalid ones. Only the first of several settings that record the same plan is returned.
std::vector<Ranked> rank_candidates(const SearchSpace& space, int most, const EstimateAll& estimate);

}  // namespace prun
