// The candidates worth simulating: all combinations estimated, or, where there are too many, those near the best.
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
  std::string wrong;  // why there is no such plan; "": there is
  bool fits() const { return estimate.peak_bytes <= kRoughly * estimate.memory_bytes; }
  static constexpr double kRoughly = 1.1;  // of memory, which an estimate may miss by a tenth
};

// Estimates some candidates; in their order.
using EstimateAll = std::function<std::vector<Ranked>(const std::vector<Combination>& combinations)>;

// At most `most` candidates; the fastest that fit first, then by how far they are from fitting, then those that are no
// plan. Of settings that record the same plan the first stands for all.
std::vector<Ranked> rank_candidates(const SearchSpace& space, int most, const EstimateAll& estimate);

}  // namespace prun
