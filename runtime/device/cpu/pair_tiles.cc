// See pair_tiles.h.
#include "device/cpu/pair_tiles.h"

#include <algorithm>

#include "base/error.h"
#include "device/cpu/simd.h"
#include "device/cpu/turn.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define PRUN_V4 __attribute__((target("arch=x86-64-v4")))

namespace prun::cpu {
namespace {

typedef uint16_t Half __attribute__((may_alias));

// Elements of two rows one after the other, 16 of each.
struct alignas(64) Interleaving {
  uint16_t places[kBlock];
  explicit constexpr Interleaving(uint16_t first) : places() {
    for (uint16_t i = 0; i < kBlock; ++i) places[i] = static_cast<uint16_t>(first + i / 2 + i % 2 * kBlock);
  }
};
constexpr Interleaving kLeft(0), kRight(kSide);

// Two tiles of pairs of rows p and p + 1 of a matrix [K, columns]: (x[p][j], x[p + 1][j]) for 2 x 16 columns.
PRUN_V4 void pair_rows(const Half* x, int64_t x_row, Pair* left, Pair* right) {
  const __m512i to_left = _mm512_load_si512(&kLeft), to_right = _mm512_load_si512(&kRight);
  for (int64_t p = 0; p < kSide; ++p, x += 2 * x_row, left += kSide, right += kSide) {
    const __m512i even = _mm512_loadu_si512(x), odd = _mm512_loadu_si512(x + x_row);
    _mm512_storeu_si512(left, _mm512_permutex2var_epi16(even, to_left, odd));
    _mm512_storeu_si512(right, _mm512_permutex2var_epi16(even, to_right, odd));
  }
}

// A tile whose columns are 16 rows of pairs, `from_row` pairs apart.
PRUN_V4 void turn_rows(const Pair* from, int64_t from_row, Pair* to) {
  for (int64_t i = 0; i < kSide; i += 8) {
    for (int64_t j = 0; j < kSide; j += 8) {
      Eight rows[8];
      for (int64_t r = 0; r < 8; ++r) rows[r] = *reinterpret_cast<const Eight*>(from + (i + r) * from_row + j);
      turn(rows);
      for (int64_t r = 0; r < 8; ++r) *reinterpret_cast<Eight*>(to + (j + r) * kSide + i) = rows[r];
    }
  }
}

PRUN_V4 void copy_rows(const Pair* from, int64_t from_row, Pair* to) {
  for (int64_t r = 0; r < kSide; ++r) _mm512_storeu_si512(to + r * kSide, _mm512_loadu_si512(from + r * from_row));
}

}  // namespace

void copy_block(const bf16* x, int64_t x_row, int64_t high, int64_t wide, Lying lying, Pair* first, Pair* second) {
  alignas(64) bf16 edge[kSquare];
  alignas(64) Pair other[2 * kTile];
  const bool down = lying == Lying::paired || lying == Lying::turned;
  const bool askew = !down && (x_row % 2 != 0 || reinterpret_cast<uintptr_t>(x) % sizeof(Pair) != 0);
  if (high < kBlock || wide < kBlock || askew) {
    std::fill(edge, edge + kSquare, bf16{});
    for (int64_t r = 0; r < high; ++r) std::copy(x + r * x_row, x + r * x_row + wide, edge + r * kBlock);
    x = edge;
    x_row = kBlock;
  }
  const Half* halves = reinterpret_cast<const Half*>(x);
  if (lying == Lying::paired) return pair_rows(halves, x_row, first, second);
  if (lying == Lying::turned) {
    pair_rows(halves, x_row, other, other + kTile);
    turn_rows(other, kSide, first);
    return turn_rows(other + kTile, kSide, second);
  }
  const auto take = lying == Lying::columns ? turn_rows : copy_rows;
  const Pair* pairs = reinterpret_cast<const Pair*>(x);
  take(pairs, x_row / 2, first);
  take(pairs + kSide * x_row / 2, x_row / 2, second);
}

}  // namespace prun::cpu

#else

namespace prun::cpu {

void copy_block(const bf16*, int64_t, int64_t, int64_t, Lying, Pair*, Pair*) { PRUN_CHECK(false, "no pairs"); }

}  // namespace prun::cpu

#endif
