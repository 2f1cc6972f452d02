// The settings of ranges of elements, as the kernels of all optimizers read them.
#pragma once
#include <span>
#include <vector>

#include "op.h"
#include "prun/sdk/update_ranges.h"

namespace prun::cuda {

// Returns the settings of the op's elements. `decay`: the default.
inline std::vector<sdk::UpdateRange> update_ranges_of(const OpView& view, int64_t n, double decay) {
  if (!view.has("piece_starts")) return {{0, n, view.number("lr_factor", 1), view.number("weight_decay", decay)}};
  const std::span<const int64_t> starts = view.integers("piece_starts");
  const std::vector<double> factors = view.numbers("piece_lr_factors"), decays = view.numbers("piece_weight_decays");
  const int64_t offset = view.share("axis").index * view.integer("shard");
  view.expect(
      factors.size() == starts.size() && decays.size() == starts.size() && !starts.empty() && starts.front() <= offset,
      "each of the pieces that begin at piece_starts has a factor and a weight decay");
  return sdk::update_ranges(starts, factors, decays, offset, n);
}

}  // namespace prun::cuda
