// The settings of an optimizer's update by range of its elements: parameters of one flat vector may have different
// weight decay and different factors of the learning rate (attributes piece_starts, piece_lr_factors and
// piece_weight_decays).
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace prun::sdk {

struct UpdateRange {
  int64_t begin = 0, end = 0;  // elements of the op's tensors
  double lr_factor = 1, weight_decay = 0;
};

// Returns the ranges of an op of `count` elements, in ascending order, without gaps. Its first element is element
// `offset` of the vector whose pieces begin at `starts`; the first piece begins at or before it.
inline std::vector<UpdateRange> update_ranges(std::span<const int64_t> starts, std::span<const double> lr_factors,
                                              std::span<const double> weight_decays, int64_t offset, int64_t count) {
  std::vector<UpdateRange> ranges;
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t begin = std::clamp<int64_t>(starts[i] - offset, 0, count),
                  end = i + 1 < starts.size() ? std::clamp<int64_t>(starts[i + 1] - offset, 0, count) : count;
    if (begin < end) ranges.push_back({begin, end, lr_factors[i], weight_decays[i]});
  }
  return ranges;
}

}  // namespace prun::sdk
