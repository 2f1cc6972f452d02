// The driver's prefetch policy: which cache lines each micro-tile prefetches while it computes. Results do not depend
// on it. To read the algorithm, skip this file and everything named `prefetch`: the driver's call of Backend::prefetch,
// and the class Policy of each micro-kernel, whose next() runs once per step.
//
// Micro-tiles of one column share the prefetch of the next column's operands:
//
//      column of tiles     | tile 0 | tile 1 | tile 2 | ..          tile: a share of `step` bytes
//      next panel of B     |--------|--------|--------| ..
#pragma once
#include "kernels/cpu/gemm/backend.h"

namespace prun::cpu {

// The driver's position: the column of micro-tiles that begins at row i and column j + jj of C.
struct Position {
  const Backend& backend;
  const GemmShape& shape;
  const void *a, *b;
  void* c;
  int64_t i, j, jj, width, p, depth;
  const float* next_panel;  // the panel of B that the next column reads
  bool next_is_unpacked;    // it is packed just before that
};

struct ColumnPrefetch {
  Prefetch first;
  int64_t step = 0, tiles = 1;  // bytes from one tile's lines to the next tile's; number of tiles that prefetch
  Prefetch of(int64_t tile) const {
    Prefetch share = first;
    if (tile >= tiles) return {first.line};
    share.line += tile * step;
    return share;
  }
};

// Prefetches B's next panel, or the elements from which it will be packed. `lines`: cache lines per step.
inline ColumnPrefetch prefetch_panel(const Position& at, int64_t lines) {
  constexpr int64_t kLine = 64;
  const int64_t steps = at.depth / kPrefetchDepth;
  if (!at.next_is_unpacked) {
    const Prefetch first = {reinterpret_cast<const char*>(at.next_panel), kLine, lines * kLine};
    return {first, steps * first.step, at.backend.columns * kPrefetchDepth * 4 / first.step};
  }
  // A step prefetches one line of each of four rows of B. If K runs along these, a tile prefetches four whole rows.
  const GemmShape& s = at.shape;
  const int64_t next = at.j + at.jj + at.backend.columns, k = at.p * at.backend.pair;
  const int64_t size = dtype_bytes(s.input), row = s.b_row() * size;
  const char* from =
      static_cast<const char*>(at.b) + (s.transpose_b ? next * s.b_row() + k : k * s.b_row() + next) * size;
  if (s.transpose_b) return {{from, row, kPrefetchDepth * 4}, 4 * row, at.backend.columns / 4};
  return {{from, row, 4 * row}, steps * 4 * row, at.backend.pair * kPrefetchDepth / 4};
}

}  // namespace prun::cpu
