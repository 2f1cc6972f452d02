// The backend of bf16 on AMX: 32 x 32 accumulators in four of the eight tile registers, while tiles of A and B stream
// through the other four (pair_tiles.h has the layout of tiles):
//
//                   | B left: 6 | B right: 7 |
//      A upper: 4   |     0     |     1      |
//      A lower: 5   |     2     |     3      |
//
// The bias and rounding of a bf16 tile are overlapped with the next tile: vectors work while tiles multiply. Tiles
// alternate between two accumulator buffers:
//
//      tile unit     | tile n -> buffer 0 | tile n+1 -> buffer 1 | tile n+2 -> buffer 0 |
//      vector unit   | round buffer 1     | round buffer 0       | round buffer 1       |  finish
//
// Surprising fact: the overlap hides bias and rounding completely. Initializing accumulators with the bias, 16 equal
// rows, would cost a tenth.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/gemm/prefetch_plan.h"
#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/intrinsics.h"

#if defined(__x86_64__)

namespace prun::cpu {
namespace {

constexpr int64_t kPackedBytes = int64_t{1} << 20;  // packed B per block: half of an L2 cache of 2 MiB
constexpr int64_t kWholeDepth = 2048;               // largest K in one part, in elements of bf16
constexpr int64_t kPartDepth = 1024;                // depth of a part of a longer K; wider blocks read A less often

// Returns the number of equal parts of K, each in whole tiles. Between parts f32 accumulators are stored unrounded.
int64_t parts_of(const GemmShape& s) { return s.k <= kWholeDepth ? 1 : (s.k + kPartDepth - 1) / kPartDepth; }
bool keeps_sums_apart(const GemmShape& s) { return s.output == Dtype::bf16 && parts_of(s) > 1; }
Blocking blocking(const GemmShape& s) {
  const int64_t depth = round_up((s.k + parts_of(s) - 1) / parts_of(s), kBlock);
  const int64_t fit = kPackedBytes / (depth * 2) / kBlock * kBlock;
  return {depth / 2, kBlock, std::min(std::max(fit, 4 * kBlock), round_up(s.n, kBlock))};
}

GemmScratch scratch(const GemmShape& s) {
  const Blocking block = blocking(s);
  GemmScratch l;
  l.a = 0;
  l.b = l.a + kBlock * block.depth;
  l.bias = l.b + block.columns * block.depth;
  l.accumulators = l.bias + block.columns;
  l.total = l.accumulators + (keeps_sums_apart(s) ? round_up(s.m, kBlock) * block.columns : 2 * kRegisterTile);
  return l;
}

// Rows are read in place unless they cross the matrix's edge or all of them map to one set of the first-level cache.
bool reads_a_in_place(const GemmShape& s, int64_t rows_left) {
  return !s.transpose_a && rows_left >= kBlock && s.k % kBlock == 0 && s.k * 2 % 4096 != 0;
}

// Packs rows of A, or columns of B, to tiles: 16 rows (columns) each, consecutive along K, padded with zeros. A row of
// a tile has 16 pairs of one row of A, or one pair of each of 16 columns of B.
void pack(const PanelSource& s, PairLayout along, PairLayout down, Pair* to) {
  const int64_t steps = (s.depth + kBlock - 1) / kBlock;
  const auto* x = static_cast<const bf16*>(s.x);
  const auto copy = [&](int64_t r, int64_t p) {
    Pair* upper = to + (r / kSide * steps + p / kBlock) * kTile;
    const int64_t count = std::min(s.count - r, kBlock), deep = std::min(s.depth - p, kBlock);
    if (s.k_along_rows)
      copy_block(x + r * s.row + p, s.row, count, deep, along, upper, upper + steps * kTile);
    else
      copy_block(x + p * s.row + r, s.row, deep, count, down, upper, upper + steps * kTile);
  };
  // Copies in x's storage order.
  if (s.k_along_rows) {
    for (int64_t r = 0; r < s.count; r += kBlock)
      for (int64_t p = 0; p < s.depth; p += kBlock) copy(r, p);
  } else {
    for (int64_t p = 0; p < s.depth; p += kBlock)
      for (int64_t r = 0; r < s.count; r += kBlock) copy(r, p);
  }
}
void pack_a(const PanelSource& s, float* to) {
  pack(s, PairLayout::rows, PairLayout::transposed, reinterpret_cast<Pair*>(to));
}
void pack_b(const PanelSource& s, float* to, float*) {
  pack(s, PairLayout::columns, PairLayout::paired, reinterpret_cast<Pair*>(to));
}

PRUN_AMX inline void round_rows(Unrounded& tile, int64_t rows) {
  const __m512 left = _mm512_loadu_ps(tile.bias), right = _mm512_loadu_ps(tile.bias + kSide);
  for (int64_t r = 0; r < rows; ++r, tile.accumulators += tile.accumulators_row, tile.c += tile.c_row) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(tile.accumulators + kSide) + right,
                                                 _mm512_loadu_ps(tile.accumulators) + left);
    std::memcpy(static_cast<void*>(tile.c), &rounded, sizeof rounded);
  }
}

PRUN_AMX void add_bias(const float* bias, float* accumulators, int64_t row) {
  for (int64_t r = 0; r < kBlock; ++r, accumulators += row)
    for (int64_t i = 0; i < kBlock; ++i) accumulators[i] += bias[i];
}

// Prefetches in each step lines of A's next rows, and rows of the tile of C that is written next.
struct TilePrefetch {
  Prefetch left;
  int64_t rows_of_c;
  PRUN_AMX inline TilePrefetch(const Prefetch& all, int64_t steps)
      : left(all), rows_of_c(all.c == nullptr ? 0 : (kBlock + steps - 1) / steps) {}
  PRUN_AMX inline void next() {
    for (int64_t i = 0; i < left.lines; ++i) __builtin_prefetch(left.line + i * left.row, 0, 2);
    left.line += left.step;
    for (int64_t i = 0; i < rows_of_c; ++i, left.c += left.c_row)
      for (int64_t j = 0; j < left.c_lines; ++j) __builtin_prefetch(left.c + j * kAlignBytes, 0, 2);
  }
};

// 32 rows of A, packed or in place. Offsets in pairs: to the next row, to the next tile of K, to the lower 16 rows.
struct RowsOfA {
  const Pair* first;
  int64_t row, step, lower;
};

// Accumulates A·B over `steps` tiles of K in tile registers 0 to 3. Each of the first kBlock / kRows steps rounds
// `kRows` rows of the previous tile.
template <int kRows, class Policy>
PRUN_AMX void accumulate(const RowsOfA& a, const Pair* b, int64_t steps, Unrounded previous, Policy prefetch) {
  const Pair *upper = a.first, *lower = upper + a.lower, *right = b + steps * kTile;
  const int64_t a_bytes = a.row * 4, a_step = a.step;
  for (int64_t p = 0; p < steps; ++p, upper += a_step, lower += a_step, b += kTile, right += kTile) {
    _tile_loadd(4, upper, a_bytes);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower, a_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    if constexpr (kRows > 0)
      if (p < kBlock / kRows) round_rows(previous, kRows);
    prefetch.next();
  }
}

// Computes a tile of C and rounds the previous one meanwhile.
PRUN_AMX void tile(const Tile& t, int64_t) {
  const int64_t steps = (t.depth + kSide - 1) / kSide, c_bytes = t.c_row * 4;
  const Pair* first = reinterpret_cast<const Pair*>(t.a);
  const RowsOfA a =
      t.a_row != 0 ? RowsOfA{first, t.a_row, kSide, kSide * t.a_row} : RowsOfA{first, kSide, kTile, steps * kTile};
  const Pair* b = reinterpret_cast<const Pair*>(t.b);
  float* const lower = t.c + kSide * t.c_row;
  const TilePrefetch prefetch(t.prefetch, steps);
  if (t.add) {
    _tile_loadd(0, t.c, c_bytes);
    _tile_loadd(1, t.c + kSide, c_bytes);
    _tile_loadd(2, lower, c_bytes);
    _tile_loadd(3, lower + kSide, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const Unrounded& previous = *t.unrounded;
  if (previous.accumulators == nullptr)
    accumulate<0>(a, b, steps, previous, prefetch);
  else if (steps >= 32)
    accumulate<1>(a, b, steps, previous, prefetch);
  else if (steps >= 16)
    accumulate<2>(a, b, steps, previous, prefetch);
  else if (steps >= 8)
    accumulate<4>(a, b, steps, previous, prefetch);
  else
    accumulate<kBlock>(a, b, steps, previous, prefetch);
  _tile_stored(0, t.c, c_bytes);
  _tile_stored(1, t.c + kSide, c_bytes);
  _tile_stored(2, lower, c_bytes);
  _tile_stored(3, lower + kSide, c_bytes);
  *t.unrounded = {};
  if (t.rounded != nullptr)
    *t.unrounded = {t.c, t.c_row, t.bias, t.rounded, t.rounded_row};
  else if (t.bias != nullptr)
    add_bias(t.bias, t.c, t.c_row);
}

void finish(Unrounded& tile) {
  round_rows(tile, kBlock);
  tile = {};
}

// A row of tiles prefetches the next 32 rows of A, a share per tile; the last row of tiles prefetches the first rows,
// which the next block of B needs. Rows of C are prefetched only if C exceeds half of the second-level cache and a tile
// has too few steps for its lines to arrive in time; with more steps the prefetch would slow the GEMM.
ColumnPrefetch prefetch(const Position& at) {
  constexpr int64_t kFewSteps = 8;
  const GemmShape& s = at.shape;
  const int64_t tiles = (at.width + kBlock - 1) / kBlock, share = (kBlock + tiles - 1) / tiles, k = 2 * at.p;
  const int64_t rows = at.i + kBlock < s.m ? at.i + kBlock : 0, size = dtype_bytes(s.output);
  const auto* a = static_cast<const bf16*>(at.a);
  Prefetch p;
  p.lines = share;
  p.row = s.a_row() * 2;
  p.step = s.transpose_a ? kBlock * s.m * 2 : kBlock * 2;
  p.line = reinterpret_cast<const char*>(s.transpose_a ? a + k * s.a_row() + rows : a + rows * s.a_row() + k);
  p.line += at.jj / kBlock * share * p.row;
  if (s.k <= kFewSteps * kBlock && s.m * s.n * size > second_level_cache() / 2) {
    const int64_t next = at.jj + kBlock;
    const int64_t c = next < at.width ? at.i * s.c_row() + at.j + next : (at.i + kBlock) * s.c_row() + at.j;
    p.c = static_cast<const char*>(at.c) + c * size;
    p.c_row = s.c_row() * size;
    p.c_lines = kBlock * size / kAlignBytes;
  }
  return {p};
}

}  // namespace

const Backend kAmxTiles = {.name = "bf16 tiles",
                           .rows = kBlock,
                           .columns = kBlock,
                           .pair = 2,
                           .depth_step = kSide,
                           .gap = 0,
                           .packs_b_late = false,
                           .whole_tiles = true,
                           .rounds = true,
                           .adds_bias_last = true,
                           .overlaps = true,
                           .sums_columns = false,
                           .blocking = blocking,
                           .scratch = scratch,
                           .keeps_sums_apart = keeps_sums_apart,
                           .reads_a_in_place = reads_a_in_place,
                           .pack_a = pack_a,
                           .pack_b = pack_b,
                           .tile = tile,
                           .finish = finish,
                           .open = open_tiles,
                           .close = close_tiles,
                           .prefetch = prefetch};

}  // namespace prun::cpu

#else

namespace prun::cpu {

const Backend kAmxTiles = {};

}  // namespace prun::cpu

#endif
