// See pair_panels.h.
//
// Surprising fact: A need not be copied where its rows lie along K. A pair is broadcast from wherever it lies, and for
// 256 columns of B the copy took 3 % of a product.
#include "kernels/cpu/gemm/pair_panels.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"

#if defined(__x86_64__)
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/transpose.h"

namespace prun::cpu {
namespace {

constexpr int kPanelRows = 14, kLanes = 16, kVectors = 2, kPanelColumns = kVectors * kLanes;

// Elements of A: of a panel, or of rows where they lie, three of which have one register for their address.
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

template <int kRows, bool kInPlace>
PRUN_AVX512_BF16 inline void micro_tile(const Tile& t) {
  RowsOfA<kRows, kInPlace> a(t);
  const Pair* b = reinterpret_cast<const Pair*>(t.b);
  LinesAhead ahead = t.ahead;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  // What C is added to, or else C, is asked for a row at a time.
  const bool added = t.from_row != 0, narrow = t.rounded != nullptr;
  const char* ask = added    ? reinterpret_cast<const char*>(t.from)
                    : narrow ? reinterpret_cast<const char*>(t.rounded)
                             : reinterpret_cast<const char*>(t.c);
  const int64_t ask_row = added ? t.from_row * 4 : narrow ? t.c_row * 2 : t.c_row * 4;
  const int64_t second = added || !narrow ? 64 : 0;
  const char* const ask_end = ask + kRows * ask_row;
  int64_t p = 0;
  for (; p + kAsk <= t.depth; p += kAsk) {
    __builtin_prefetch(ahead.line, 0, 2);
    __builtin_prefetch(ahead.line + ahead.second, 0, 2);
    __builtin_prefetch(ahead.line + ahead.third, 0, 2);
    __builtin_prefetch(ahead.line + ahead.second + ahead.third, 0, 2);
    ahead.line += ahead.step;
    if (ask < ask_end) {
      __builtin_prefetch(ask, 1);
      __builtin_prefetch(ask + second, 1);
      ask += ask_row;
    }
#pragma GCC unroll 8
    for (int q = 0; q < kAsk; ++q) multiply(a, b, q, sum);
    a.advance(kAsk);
    b += kAsk * kPanelColumns;
  }
  for (; p < t.depth; ++p, a.advance(1), b += kPanelColumns) multiply(a, b, 0, sum);
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) {
    const float* from = t.from + r * t.from_row;
    const __m512 left = _mm512_add_ps(sum[r][0], _mm512_loadu_ps(from));
    const __m512 right = _mm512_add_ps(sum[r][1], _mm512_loadu_ps(from + kLanes));
    if (narrow) {
      const __m512bh both = _mm512_cvtne2ps_pbh(right, left);
      std::memcpy(static_cast<void*>(t.rounded + r * t.c_row), &both, sizeof both);
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
    t.c += n * t.c_row, t.from += n * t.from_row;
    if (t.rounded != nullptr) t.rounded += n * t.c_row;
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

// Rows are copied whole, four at a time: panel by panel each line would be fetched by itself, from another page.
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
        Pair* line = to + first / kStep * panel_size(kStep, pairs) + p * kStep;
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

// Eight pairs of each of `count` rows, at most 8, become rows of `to`.
PRUN_AVX512_BF16 inline void transpose_pairs(const bf16* x, int64_t x_row, int64_t count, Pair* to, int64_t step) {
  Eight rows[8];
  for (int i = 0; i < 8; ++i) {
    rows[i] = Eight{};
    if (i < count) std::memcpy(&rows[i], x + i * x_row, sizeof rows[i]);
  }
  transpose(rows);
  for (int i = 0; i < 8; ++i) std::memcpy(to + i * step, &rows[i], sizeof rows[i]);
}

// Whole lines of eight rows become columns; the last rows of a panel first, as they are stored over what belongs to
// the first rows of the next pair. Lines of the next panel are asked for, into the second-level cache: where rows lie
// 4,096 bytes apart the first has room for eight.
template <int kStep>
PRUN_AVX512_BF16 void copy_along(const bf16* x, int64_t x_row, int64_t columns, int64_t depth, Pair* to) {
  constexpr int64_t kSquare = 8, kLast = (kStep - 1) / kSquare * kSquare, kLine = 16;
  const int64_t pairs = (depth + 1) / 2, squares = depth / 16 * kSquare;
  for (int64_t first = 0; first < columns; first += kStep, to += panel_size(kStep, pairs)) {
    const int64_t count = std::min<int64_t>(columns - first, kStep);
    for (int64_t line = 0; line < squares; line += kLine) {
      for (int64_t j = kLast; j >= 0; j -= kSquare) {
        const bf16* from = x + (first + j) * x_row;
        if (first + kStep < columns)
          for (int64_t i = 0; i < kSquare; ++i) __builtin_prefetch(from + (kStep + i) * x_row + 2 * line, 0, 2);
        for (int64_t p = line; p < std::min(line + kLine, squares); p += kSquare)
          transpose_pairs(from + 2 * p, x_row, count - j, to + p * kStep + j, kStep);
      }
    }
    for (int64_t p = squares; p < pairs; ++p) {
      for (int64_t j = 0; j < kStep; ++j) {
        bf16 pair[2] = {};
        if (j < count) std::copy_n(x + (first + j) * x_row + 2 * p, std::min<int64_t>(depth - 2 * p, 2), pair);
        std::memcpy(to + p * kStep + j, pair, sizeof pair);
      }
    }
  }
}

}  // namespace

void copy_pair_panels(bool transposed, const bf16* x, int64_t x_row, int64_t columns, int64_t depth, int64_t step,
                      Pair* to, float* sums) {
  PRUN_CHECK(step == kPanelRows || step == kPanelColumns, std::to_string(step));
  if (transposed)
    return step == kPanelRows ? copy_along<kPanelRows>(x, x_row, columns, depth, to)
                              : copy_along<kPanelColumns>(x, x_row, columns, depth, to);
  return step == kPanelRows ? copy_down<kPanelRows>(x, x_row, columns, depth, to, sums)
                            : copy_down<kPanelColumns>(x, x_row, columns, depth, to, sums);
}

const TileKernel kPairTiles = {kPanelRows, kPanelColumns, tile_of_pairs};

}  // namespace prun::cpu

#else

namespace prun::cpu {

void copy_pair_panels(bool, const bf16*, int64_t, int64_t, int64_t, int64_t, Pair*, float*) {
  PRUN_CHECK(false, "no pairs");
}
const TileKernel kPairTiles = {};

}  // namespace prun::cpu

#endif
