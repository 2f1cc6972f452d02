// A split parameter is numbered by row, block and slice: each rank has its share of every block of the last dim.
#include "kernels/reference/parameter_elements.h"

#include <algorithm>
#include <string>

#include "device/share.h"

namespace prun {
namespace {

// Maps an element of a rank's part of a split parameter to the whole parameter.
struct Split {
  int64_t slice;
  std::vector<int64_t> blocks;  // elements of the whole parameter
  Share share;
  int64_t grain;  // in slices
  int64_t first_row = 0;
  int64_t room(int64_t block) const {
    const int64_t equal = (block / slice + share.of - 1) / share.of;
    return (equal + grain - 1) / grain * grain * slice;
  }
  // Returns -1 for padding.
  int64_t whole(int64_t e) const {
    int64_t row = 0, whole_row = 0, begin = 0;
    for (int64_t block : blocks) row += room(block), whole_row += block;
    int64_t within = e % row;
    for (int64_t block : blocks) {
      if (within < room(block)) {
        int64_t at = share.index * room(block) + within;
        return at < block ? (first_row + e / row) * whole_row + begin + at : -1;
      }
      within -= room(block), begin += block;
    }
    return -1;
  }
};

}  // namespace

std::vector<ParameterElement> parameter_elements(const Attrs& attrs, int64_t count, const RankMemory& memory) {
  std::vector<ParameterElement> elements;
  elements.reserve(count);
  const int64_t first = count * share_along(memory, attrs.text("axis")).index;
  const auto list = [&](const char* name) { return attrs.integers(name); };
  const std::vector<int64_t> starts = list("starts"), counts = list("counts"), keys = list("keys");
  const std::vector<int64_t> outer = list("split_outer"), slices = list("split_slice"), blocks = list("split_blocks"),
                             block_counts = list("split_block_count"), grains = list("split_grain");
  const std::vector<std::string> axes = names_between_commas(attrs.text("split_axis"));
  const std::vector<std::string> parts = names_between_commas(attrs.text("split_parts"));
  auto block = blocks.begin();
  for (int64_t p = 0; p < std::ssize(starts); ++p) {
    const bool is_split = !outer.empty() && outer[p] != 0;
    Split split{1, {}, {}, 1};
    if (is_split) {
      const auto end = block + block_counts[p];
      split = {slices[p], {block, end}, share_along(memory, axes[p]), grains.empty() ? 1 : grains[p]};
      block = end;
      if (p < std::ssize(parts)) split.first_row = outer[p] * share_along(memory, parts[p]).index;
    }
    for (int64_t g = std::max(first, starts[p]); g < std::min(first + count, starts[p] + counts[p]); ++g) {
      const int64_t e = is_split ? split.whole(g - starts[p]) : g - starts[p];
      if (e >= 0) elements.push_back({g - first, p, keys[p], e});
    }
  }
  return elements;
}

}  // namespace prun
