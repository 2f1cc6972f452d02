// See pair_tiles.h.
#include "kernels/cpu/gemm/pair_tiles.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/transpose.h"

#if defined(__x86_64__)

namespace prun::cpu {
namespace {

typedef uint16_t Half __attribute__((may_alias));

// Writes two tiles of pairs of rows of a matrix [K, columns]: (x[p][j], x[p + other][j]) for 2 x 16 columns j and 16
// rows p = 0, step, 2·step, ...
PRUN_V4 void pair_rows(const Half* x, int64_t x_row, int64_t step, int64_t other, Pair* left, Pair* right) {
  // Reorders quarters so that unpacking within quarters interleaves 16 columns. One permutation of two rows would take
  // as long as these three instructions.
  const __m512i in_turn = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  for (int64_t p = 0; p < kSide; ++p, x += step * x_row, left += kSide, right += kSide) {
    const __m512i even = _mm512_permutexvar_epi64(in_turn, _mm512_loadu_si512(x));
    const __m512i odd = _mm512_permutexvar_epi64(in_turn, _mm512_loadu_si512(x + other * x_row));
    _mm512_storeu_si512(left, _mm512_unpacklo_epi16(even, odd));
    _mm512_storeu_si512(right, _mm512_unpackhi_epi16(even, odd));
  }
}

typedef uint32_t Sixteen __attribute__((vector_size(64), aligned(4), may_alias));

// Interleaves elements within each quarter: (x0, y0, x1, y1) for `first` 0, (x2, y2, x3, y3) for 2.
template <int first>
PRUN_V4_INLINE Sixteen interleave(Sixteen x, Sixteen y) {
  constexpr int f = first, g = first + 16;
  return __builtin_shufflevector(x, y, f, g, f + 1, g + 1, f + 4, g + 4, f + 5, g + 5, f + 8, g + 8, f + 9, g + 9,
                                 f + 12, g + 12, f + 13, g + 13);
}
// Interleaves pairs of elements within each quarter.
template <int first>
PRUN_V4_INLINE Sixteen interleave_pairs(Sixteen x, Sixteen y) {
  constexpr int f = first, g = first + 16;
  return __builtin_shufflevector(x, y, f, f + 1, g, g + 1, f + 4, f + 5, g + 4, g + 5, f + 8, f + 9, g + 8, g + 9,
                                 f + 12, f + 13, g + 12, g + 13);
}
// Takes quarters `first` and `first` + 2 of both vectors.
template <int first>
PRUN_V4_INLINE Sixteen quarters(Sixteen x, Sixteen y) {
  constexpr int f = 4 * first, g = f + 8;
  return __builtin_shufflevector(x, y, f, f + 1, f + 2, f + 3, g, g + 1, g + 2, g + 3, f + 16, f + 17, f + 18, f + 19,
                                 g + 16, g + 17, g + 18, g + 19);
}

// Transposes as transpose_tile does, but in blocks of 8 x 8, because half as many rows in flight wait for fewer cache
// misses at a time.
PRUN_V4 void transpose_rows(const Pair* from, int64_t from_row, Pair* to) {
  for (int64_t i = 0; i < kSide; i += 8) {
    for (int64_t j = 0; j < kSide; j += 8) {
      Eight rows[8];
      for (int64_t r = 0; r < 8; ++r) rows[r] = *reinterpret_cast<const Eight*>(from + (i + r) * from_row + j);
      transpose(rows);
      for (int64_t r = 0; r < 8; ++r) *reinterpret_cast<Eight*>(to + (j + r) * kSide + i) = rows[r];
    }
  }
}

PRUN_V4 void copy_rows(const Pair* from, int64_t from_row, Pair* to) {
  for (int64_t r = 0; r < kSide; ++r) _mm512_storeu_si512(to + r * kSide, _mm512_loadu_si512(from + r * from_row));
}

}  // namespace

// Interleaves columns of four rows in each quarter of a vector, then the quarters.
PRUN_V4 void transpose_tile(const Pair* from, int64_t from_row, Pair* to, int64_t to_row) {
  Sixteen r[kSide], t[kSide];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kSide; ++i) r[i] = *reinterpret_cast<const Sixteen*>(from + i * from_row);
#pragma GCC unroll 8
  for (int64_t i = 0; i < kSide; i += 2) {
    t[i] = interleave<0>(r[i], r[i + 1]);
    t[i + 1] = interleave<2>(r[i], r[i + 1]);
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kSide; i += 2) {
    const int64_t at = i / 4 * 4 + i / 2 % 2;
    r[i] = interleave_pairs<0>(t[at], t[at + 2]);
    r[i + 1] = interleave_pairs<2>(t[at], t[at + 2]);
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kSide / 2; ++i) {
    const int64_t at = i / 4 * 8 + i % 4;
    t[at] = quarters<0>(r[at], r[at + 4]);
    t[at + 4] = quarters<1>(r[at], r[at + 4]);
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kSide / 2; ++i) {
    *reinterpret_cast<Sixteen*>(to + i * to_row) = quarters<0>(t[i], t[i + 8]);
    *reinterpret_cast<Sixteen*>(to + (i + 8) * to_row) = quarters<1>(t[i], t[i + 8]);
  }
}

void copy_block(const bf16* x, int64_t x_row, int64_t high, int64_t wide, PairLayout layout, Pair* first,
                Pair* second) {
  alignas(64) bf16 edge[kRegisterTile];
  alignas(64) Pair other[2 * kTile];
  const bool down = layout == PairLayout::paired || layout == PairLayout::apart || layout == PairLayout::transposed;
  const bool askew = !down && (x_row % 2 != 0 || reinterpret_cast<uintptr_t>(x) % sizeof(Pair) != 0);
  if (high < kBlock || wide < kBlock || askew) {
    std::fill(edge, edge + kRegisterTile, bf16{});
    for (int64_t r = 0; r < high; ++r) std::copy(x + r * x_row, x + r * x_row + wide, edge + r * kBlock);
    x = edge;
    x_row = kBlock;
  }
  const Half* halves = reinterpret_cast<const Half*>(x);
  if (layout == PairLayout::paired) return pair_rows(halves, x_row, 2, 1, first, second);
  if (layout == PairLayout::apart) return pair_rows(halves, x_row, 1, kSide, first, second);
  if (layout == PairLayout::transposed) {
    pair_rows(halves, x_row, 2, 1, other, other + kTile);
    transpose_tile(other, kSide, first, kSide);
    return transpose_tile(other + kTile, kSide, second, kSide);
  }
  const auto take = layout == PairLayout::columns ? transpose_rows : copy_rows;
  const Pair* pairs = reinterpret_cast<const Pair*>(x);
  take(pairs, x_row / 2, first);
  take(pairs + kSide * x_row / 2, x_row / 2, second);
}

}  // namespace prun::cpu

#else

namespace prun::cpu {

void copy_block(const bf16*, int64_t, int64_t, int64_t, PairLayout, Pair*, Pair*) { PRUN_CHECK(false, "no pairs"); }
void transpose_tile(const Pair*, int64_t, Pair*, int64_t) { PRUN_CHECK(false, "no tiles"); }

}  // namespace prun::cpu

#endif
