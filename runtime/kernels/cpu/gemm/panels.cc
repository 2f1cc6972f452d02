#include "kernels/cpu/gemm/panels.h"

#include <algorithm>

#include "kernels/cpu/instruction_set.h"

namespace prun::cpu {
namespace {

constexpr int64_t kMostDepth = 768;      // elements of K per part
constexpr int64_t kMostBlockRows = 336;  // rows of A per block: 1 MiB, half of a second-level cache of 2 MiB
constexpr int64_t kBlockColumns = 1024;  // columns of B per block: 3 MiB
constexpr int64_t kSlack = 16;           // floats after the panels, since copies store whole vectors

// A's block fills half of the second-level cache, through which C and B stream, or an eighth more. Rows are divided
// into equal blocks, because a last block of a few rows would read B once more. Results do not depend on it.
int64_t block_rows(int64_t m, int64_t depth, int64_t step) {
  const int64_t half = second_level_cache() / 2 / (depth * static_cast<int64_t>(sizeof(float)));
  const int64_t fit = std::clamp(half, step, kMostBlockRows);
  const int64_t blocks = std::max((m - fit / 8 + fit - 1) / fit, int64_t{1});
  return std::min(round_up((m + blocks - 1) / blocks, step), kMostBlockRows);
}

}  // namespace

Blocking panel_blocking(const GemmShape& s, int64_t tile_rows, int64_t pair) {
  const int64_t k = (s.k + pair - 1) / pair, parts = (k + kMostDepth - 1) / kMostDepth;
  const int64_t depth = round_up((k + parts - 1) / parts, kPrefetchDepth);  // equal parts
  return {depth, block_rows(s.m, depth, tile_rows), kBlockColumns};
}

// Returns scratch for this k and any smaller one, and for the largest tiles on any machine, so that a program's memory
// does not depend on the machine that compiles it.
GemmScratch panel_scratch(const GemmShape& s) {
  constexpr int64_t kTileRows = 14, kTileColumns = 32, kLeastStep = 4;
  const int64_t columns = round_up(std::min(s.n, kBlockColumns), kTileColumns);
  const int64_t rows = std::min(s.m, kMostBlockRows) + kTileRows - 1;
  const int64_t depth = std::min(round_up(s.k, kPrefetchDepth), kMostDepth);
  GemmScratch l;
  l.a = 0;
  l.b = l.a + round_up(rows * depth + rows / kLeastStep * kPanelGap + kSlack, 16);
  l.bias = l.b + round_up(columns * depth + columns / kLeastStep * kPanelGap + kSlack, 16);
  l.accumulators = l.bias + columns;
  l.total = l.accumulators + (panels_keep_sums_apart(s) ? round_up(s.m * columns, 16) : kTileRows * kTileColumns);
  return l;
}

bool panels_keep_sums_apart(const GemmShape& s) { return s.output == Dtype::bf16 && s.k > kMostDepth; }

}  // namespace prun::cpu
