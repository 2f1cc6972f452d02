// The backend of bf16 panels for AVX512_BF16: an element is a pair of neighbours in K, and one instruction accumulates
// the dot product of two pairs. A register tile is 14 x 32:
//
//              panel of B: 2 vectors of 16 pairs a row
//              |bb bb ..|bb bb ..|   p
//      |aa| x  |c  c  ..|c  c  ..|   14 rows of accumulators
//      |aa|    |c  c  ..|c  c  ..|
//       p      a pair of A is broadcast
//
// Surprising fact: A need not be packed if K runs along its rows, because a pair can be broadcast from any address.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "kernels/cpu/gemm/pair_tiles.h"
#include "kernels/cpu/gemm/panels.h"
#include "kernels/cpu/gemm/prefetch_plan.h"

#if defined(__x86_64__)
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/transpose.h"

namespace prun::cpu {
namespace {

constexpr int kPanelRows = 14, kLanes = 16, kVectors = 2, kPanelColumns = kVectors * kLanes;

// Pairs of A, in a panel or in rows in place. In place, three rows share an address register.
template <int kRows, bool kInPlace>
struct RowsOfA {
  static constexpr int kGroups = kInPlace ? (kRows + 2) / 3 : 1;
  const Pair* at[kGroups];
  int64_t row;
  explicit RowsOfA(const Tile& t) : row(t.a_row) {
    for (int g = 0; g < kGroups; ++g) at[g] = reinterpret_cast<const Pair*>(t.a) + 3 * g * row;
  }
  const Pair& element(int r, int p) const { return kInPlace ? at[r / 3][r % 3 * row + p] : at[0][p * kPanelRows + r]; }
  void advance(int count) {
    for (int g = 0; g < kGroups; ++g) at[g] += kInPlace ? count : count * kPanelRows;
  }
};

template <int kRows, bool kInPlace>
PRUN_AVX512_BF16 inline void multiply(const RowsOfA<kRows, kInPlace>& a, const Pair* b, int p,
                                      __m512 (&sum)[kRows][kVectors]) {
  b += p * kPanelColumns;
  const __m512bh x = (__m512bh)_mm512_loadu_si512(b), y = (__m512bh)_mm512_loadu_si512(b + kLanes);
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) {
    const __m512bh factor = (__m512bh)_mm512_set1_epi32(static_cast<int>(a.element(r, p)));
    sum[r][0] = _mm512_dpbf16_ps(sum[r][0], factor, x);
    sum[r][1] = _mm512_dpbf16_ps(sum[r][1], factor, y);
  }
}

// Prefetches in each step four lines of the next panel and a row of C, or with `add` of its accumulators.
struct PairPrefetch {
  const char *line, *c, *c_end;
  int64_t second, third, step, c_row, c_second;
  PRUN_AVX512_BF16 inline PairPrefetch(const Tile& t, int rows)
      : line(t.prefetch.line), second(t.prefetch.row), third(2 * t.prefetch.row), step(t.prefetch.step) {
    const bool narrow = !t.add && t.rounded != nullptr;
    c = narrow ? reinterpret_cast<const char*>(t.rounded) : reinterpret_cast<const char*>(t.c);
    c_row = narrow ? t.rounded_row * 2 : t.c_row * 4;
    c_second = narrow ? 0 : 64;
    c_end = c + rows * c_row;
  }
  PRUN_AVX512_BF16 inline void next() {
    __builtin_prefetch(line, 0, 2);
    __builtin_prefetch(line + second, 0, 2);
    __builtin_prefetch(line + third, 0, 2);
    __builtin_prefetch(line + second + third, 0, 2);
    line += step;
    if (c >= c_end) return;
    __builtin_prefetch(c, 1);
    __builtin_prefetch(c + c_second, 1);
    c += c_row;
  }
};

template <int kRows, bool kInPlace, class Policy = PairPrefetch>
PRUN_AVX512_BF16 inline void micro_tile(const Tile& t) {
  RowsOfA<kRows, kInPlace> a(t);
  const Pair* b = reinterpret_cast<const Pair*>(t.b);
  Policy prefetch(t, kRows);
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  int64_t p = 0;
  for (; p + kPrefetchDepth <= t.depth; p += kPrefetchDepth) {
    prefetch.next();
#pragma GCC unroll 8
    for (int q = 0; q < kPrefetchDepth; ++q) multiply(a, b, q, sum);
    a.advance(kPrefetchDepth);
    b += kPrefetchDepth * kPanelColumns;
  }
  for (; p < t.depth; ++p, a.advance(1), b += kPanelColumns) multiply(a, b, 0, sum);
  const float* from = t.add ? t.c : t.bias;
  const int64_t from_row = t.add ? t.c_row : 0;
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r, from += from_row) {
    const __m512 left = _mm512_add_ps(sum[r][0], _mm512_loadu_ps(from));
    const __m512 right = _mm512_add_ps(sum[r][1], _mm512_loadu_ps(from + kLanes));
    if (t.rounded != nullptr) {
      const __m512bh both = _mm512_cvtne2ps_pbh(right, left);
      std::memcpy(static_cast<void*>(t.rounded + r * t.rounded_row), &both, sizeof both);
    } else {
      _mm512_storeu_ps(t.c + r * t.c_row, left);
      _mm512_storeu_ps(t.c + r * t.c_row + kLanes, right);
    }
  }
}

template <bool kInPlace>
PRUN_AVX512_BF16 void tile_of(const Tile& tile, int64_t rows) {
  if (rows == kPanelRows) return micro_tile<kPanelRows, kInPlace>(tile);
  Tile t = tile;
  const auto advance = [&t](int64_t n) {
    t.a += kInPlace ? n * t.a_row : n;
    t.c += n * t.c_row;
    if (t.rounded != nullptr) t.rounded += n * t.rounded_row;
  };
  if (rows >= 8) {
    micro_tile<8, kInPlace>(t);
    advance(8);
    rows -= 8;
  }
  if (rows >= 4) {
    micro_tile<4, kInPlace>(t);
    advance(4);
    rows -= 4;
  }
  for (; rows > 0; --rows) {
    micro_tile<1, kInPlace>(t);
    advance(1);
  }
}

void tile_of_pairs(const Tile& t, int64_t rows) { t.a_row != 0 ? tile_of<true>(t, rows) : tile_of<false>(t, rows); }

// Packs panels of kStep columns of x. Copies whole rows, four at a time, because panel by panel each line would be a
// cache miss of its own, in another page. Pads the last panel and the last pair with zeros. Adds the columns' sums to
// `sums` unless it is null.
template <int kStep>
PRUN_AVX512_BF16 void copy_down(const bf16* x, int64_t x_row, int64_t columns, int64_t depth, Pair* to, float* sums) {
  constexpr int64_t kTogether = 2;
  const int64_t pairs = (depth + 1) / 2;
  for (int64_t top = 0; top < pairs; top += kTogether) {
    const int64_t bottom = std::min(top + kTogether, pairs);
    for (int64_t first = 0; first < columns; first += kStep) {
      const int64_t count = std::min<int64_t>(columns - first, kStep);
      __m512 total[kVectors] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      for (int64_t p = top; p < bottom; ++p) {
        const bf16* even = x + 2 * p * x_row + first;
        const bool has_odd = 2 * p + 1 < depth;
        Pair* line = to + first / kStep * panel_elements(kStep, pairs) + p * kStep;
        for (int64_t v = 0; v * kLanes < kStep; ++v) {
          const int64_t left = std::clamp<int64_t>(count - v * kLanes, 0, kLanes);
          const auto mask = static_cast<__mmask16>((1u << left) - 1);
          const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even + v * kLanes));
          const __m512i high = _mm512_slli_epi32(
              _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(has_odd ? mask : 0, even + x_row + v * kLanes)), 16);
          constexpr unsigned kWhole = (1u << std::min(kStep, kLanes)) - 1;
          _mm512_mask_storeu_epi32(line + v * kLanes, kWhole, _mm512_or_si512(low, high));
          if (sums != nullptr)
            total[v] = _mm512_add_ps(
                total[v], _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(low, 16)), _mm512_castsi512_ps(high)));
        }
      }
      if (sums == nullptr) continue;
      for (int64_t v = 0; v * kLanes < count; ++v) {
        const auto mask = static_cast<__mmask16>((1u << std::min<int64_t>(count - v * kLanes, kLanes)) - 1);
        float* at = sums + first + v * kLanes;
        _mm512_mask_storeu_ps(at, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, at), total[v]));
      }
    }
  }
}

// Transposes eight pairs of each of `count` rows, at most 8, to rows of `to`.
PRUN_AVX512_BF16 inline void transpose_pairs(const bf16* x, int64_t x_row, int64_t count, Pair* to, int64_t step) {
  Eight rows[8];
  for (int i = 0; i < 8; ++i) {
    rows[i] = Eight{};
    if (i < count) std::memcpy(&rows[i], x + i * x_row, sizeof rows[i]);
  }
  transpose(rows);
  for (int i = 0; i < 8; ++i) std::memcpy(to + i * step, &rows[i], sizeof rows[i]);
}

// Packs the same panels if K runs along rows of x. Transposes whole lines of eight rows, the last rows of a panel
// first, because they overwrite the first rows of the next pair. Prefetches the next panel's lines to the second-level
// cache, because the first holds only eight of them if rows are 4,096 bytes apart.
template <int kStep>
PRUN_AVX512_BF16 void copy_along(const bf16* x, int64_t x_row, int64_t columns, int64_t depth, Pair* to) {
  constexpr int64_t kEight = 8, kLast = (kStep - 1) / kEight * kEight, kLine = 16;
  const int64_t pairs = (depth + 1) / 2, transposed = depth / 16 * kEight;
  for (int64_t first = 0; first < columns; first += kStep, to += panel_elements(kStep, pairs)) {
    const int64_t count = std::min<int64_t>(columns - first, kStep);
    for (int64_t line = 0; line < transposed; line += kLine) {
      for (int64_t j = kLast; j >= 0; j -= kEight) {
        const bf16* from = x + (first + j) * x_row;
        if (first + kStep < columns)
          for (int64_t i = 0; i < kEight; ++i) __builtin_prefetch(from + (kStep + i) * x_row + 2 * line, 0, 2);
        for (int64_t p = line; p < std::min(line + kLine, transposed); p += kEight)
          transpose_pairs(from + 2 * p, x_row, count - j, to + p * kStep + j, kStep);
      }
    }
    for (int64_t p = transposed; p < pairs; ++p) {
      for (int64_t j = 0; j < kStep; ++j) {
        bf16 pair[2] = {};
        if (j < count) std::copy_n(x + (first + j) * x_row + 2 * p, std::min<int64_t>(depth - 2 * p, 2), pair);
        std::memcpy(to + p * kStep + j, pair, sizeof pair);
      }
    }
  }
}

template <int kStep>
void pack(const PanelSource& s, float* panels, float* sums) {
  const auto* x = static_cast<const bf16*>(s.x);
  Pair* to = reinterpret_cast<Pair*>(panels);
  s.k_along_rows ? copy_along<kStep>(x, s.row, s.count, s.depth, to)
                 : copy_down<kStep>(x, s.row, s.count, s.depth, to, sums);
}

// Rows are read in place unless all of them map to one set of the first-level cache.
bool reads_a_in_place(const GemmShape& s, int64_t) {
  constexpr int64_t kSets = 4096;
  return !s.transpose_a && s.k % 2 == 0 && s.k * static_cast<int64_t>(sizeof(bf16)) % kSets != 0;
}

constexpr Backend pair_panels() {
  Backend b = kPanels;
  b.name = "bf16 pairs", b.rows = kPanelRows, b.columns = kPanelColumns, b.pair = 2;
  b.packs_b_late = b.rounds = true;
  b.blocking = [](const GemmShape& s) { return panel_blocking(s, kPanelRows, 2); };
  b.reads_a_in_place = reads_a_in_place;
  b.pack_a = [](const PanelSource& s, float* to) { pack<kPanelRows>(s, to, nullptr); };
  b.pack_b = pack<kPanelColumns>;
  b.tile = tile_of_pairs;
  b.prefetch = [](const Position& at) { return prefetch_panel(at, 4); };
  return b;
}

}  // namespace

const Backend kPairPanels = pair_panels();

}  // namespace prun::cpu

#else

namespace prun::cpu {

const Backend kPairPanels = {};

}  // namespace prun::cpu

#endif
