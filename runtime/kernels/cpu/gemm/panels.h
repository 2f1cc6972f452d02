// The panel layout that the vector backends share: `step` rows of A or columns of B for each element of K, a gap after
// each panel, and blocks that fit the second-level cache.
#pragma once
#include "kernels/cpu/gemm/backend.h"

namespace prun::cpu {

// Elements from a panel to the next. The gap is a cache line, because otherwise panels of a depth of 512 would begin at
// multiples of 4,096 bytes, and rows that are copied to many panels would compete for one set of the first-level cache.
constexpr int64_t kPanelGap = 16;
constexpr int64_t panel_elements(int64_t step, int64_t depth) { return step * depth + kPanelGap; }

// `pair`: see Backend.
Blocking panel_blocking(const GemmShape& shape, int64_t tile_rows, int64_t pair);
GemmScratch panel_scratch(const GemmShape& shape);
bool panels_keep_sums_apart(const GemmShape& shape);

// The fields that these backends share.
constexpr Backend kPanels = {.name = "",
                             .depth_step = 1,
                             .gap = kPanelGap,
                             .sums_columns = true,
                             .scratch = panel_scratch,
                             .keeps_sums_apart = panels_keep_sums_apart};

}  // namespace prun::cpu
