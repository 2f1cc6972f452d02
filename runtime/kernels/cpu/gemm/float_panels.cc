// Backends of f32 panels for vectors of 4, 8 and 16 floats; bf16 operands are widened to f32 while they are packed. A
// register tile of kRows x (kVectors · kLanes) accumulators reads one column of A's panel and one row of B's at a time:
//
//             panel of B: kVectors vectors a row
//             |bbbb|bbbb|   p
//      |a|    |cccc|cccc|
//      |a| x  |cccc|cccc|   kRows rows of accumulators
//      |a|    |cccc|cccc|
//       p     panel of A: kRows elements a column
#include <cstring>
#include <type_traits>

#include "base/vector_levels.h"
#include "kernels/cpu/gemm/panels.h"
#include "kernels/cpu/gemm/prefetch_plan.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/transpose.h"

namespace prun::cpu {
namespace {

template <int kLanes>
struct Vector {
  typedef float type __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
};

// Prefetches in each step a line of the next panel and one row of C, because all rows of C at once would delay the
// panels' lines.
template <bool kTwoLines>
struct FloatPrefetch {
  const char* line;
  int64_t step;
  const float *c, *c_end;
  int64_t c_row;
  PRUN_INLINE FloatPrefetch(const Tile& t, int rows)
      : line(t.prefetch.line), step(t.prefetch.step), c(t.c), c_end(t.c + rows * t.c_row), c_row(t.c_row) {}
  PRUN_INLINE void next() {
    __builtin_prefetch(line, 0, 2);
    line += step;
    if (c >= c_end) return;
    __builtin_prefetch(c, 1);
    if (kTwoLines) __builtin_prefetch(c + 16, 1);
    c += c_row;
  }
};

// A's element (r, p) is at a[p · kPanelRows + r], B's row p at b[p · kVectors · kLanes].
template <int kLanes, int kRows, int kVectors, int kPanelRows, class Policy = FloatPrefetch<(kVectors * kLanes > 16)>>
PRUN_INLINE void micro_tile(const Tile& t) {
  using V = typename Vector<kLanes>::type;
  const float *a = t.a, *b = t.b;
  Policy prefetch(t, kRows);
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = V{};
  }
  const auto multiply = [&] {
    V row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = *reinterpret_cast<const V*>(b + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const float x = a[r];
      for (int v = 0; v < kVectors; ++v) sum[r][v] += x * row[v];
    }
    a += kPanelRows;
    b += kVectors * kLanes;
  };
  int64_t p = 0;
  for (; p + kPrefetchDepth <= t.depth; p += kPrefetchDepth) {
    prefetch.next();
#pragma GCC unroll 8
    for (int q = 0; q < kPrefetchDepth; ++q) multiply();
  }
  for (; p < t.depth; ++p) multiply();
  const float* const from = t.add ? t.c : t.bias;
  const int64_t from_row = t.add ? t.c_row : 0;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      *reinterpret_cast<V*>(t.c + r * t.c_row + v * kLanes) =
          sum[r][v] + *reinterpret_cast<const V*>(from + r * from_row + v * kLanes);
  }
}

template <int kLanes, int kRows, int kVectors>
PRUN_INLINE void tile_of(Tile t, int64_t rows) {
  if (rows == kRows) return micro_tile<kLanes, kRows, kVectors, kRows>(t);
  const auto advance = [&](int64_t n) { t.a += n, t.c += n * t.c_row, rows -= n; };
  if (kRows > 8 && rows >= 8) {
    micro_tile<kLanes, 8, kVectors, kRows>(t);
    advance(8);
  }
  if (kRows > 4 && rows >= 4) {
    micro_tile<kLanes, 4, kVectors, kRows>(t);
    advance(4);
  }
  for (int64_t left = rows; left > 0; --left) {
    micro_tile<kLanes, 1, kVectors, kRows>(t);
    advance(1);
  }
}

void tile_default(const Tile& t, int64_t rows) { tile_of<4, 4, 2>(t, rows); }
#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v3"))) void tile_avx2(const Tile& t, int64_t rows) { tile_of<8, 6, 2>(t, rows); }
__attribute__((target("arch=x86-64-v4"))) void tile_avx512(const Tile& t, int64_t rows) { tile_of<16, 14, 2>(t, rows); }
#else
constexpr auto tile_avx2 = tile_default, tile_avx512 = tile_default;
#endif

// Copies a whole row of a panel, because GCC cannot prove that x and the panel do not overlap and would copy element by
// element.
template <int kStep, class T>
PRUN_INLINE void copy_piece(const T* from, float* to) {
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(to, from, kStep * sizeof(float));
  } else {
    float piece[kStep];
    for (int j = 0; j < kStep; ++j) piece[j] = load(from[j]);
    std::memcpy(to, piece, sizeof piece);
  }
}

// Packs panels of kStep columns of x, with row p of a panel at [p · kStep]: B, and an A that is stored transposed ([k,
// m]). Pads the last panel with zeros. Copies whole rows, four at a time, because panel by panel each line would be a
// cache miss of its own, in another page. Adds the columns' sums to `sums` unless it is null.
template <int kStep, class T>
PRUN_CLONES void copy_panels(const T* x, int64_t x_row, int64_t columns, int64_t depth, float* to, float* sums) {
  constexpr int64_t kTogether = 4;
  for (int64_t top = 0; top < depth; top += kTogether) {
    const int64_t bottom = top + kTogether < depth ? top + kTogether : depth;
    int64_t first = 0;
    float* panel = to;
    for (; first + kStep <= columns; first += kStep, panel += panel_elements(kStep, depth)) {
      for (int64_t p = top; p < bottom; ++p) copy_piece<kStep>(x + p * x_row + first, panel + p * kStep);
      if (sums != nullptr && bottom - top == kTogether) {
        const float* line = panel + top * kStep;
        for (int j = 0; j < kStep; ++j)
          sums[first + j] += (line[j] + line[kStep + j]) + (line[2 * kStep + j] + line[3 * kStep + j]);
      } else if (sums != nullptr) {
        for (int64_t p = top; p < bottom; ++p)
          for (int j = 0; j < kStep; ++j) sums[first + j] += panel[p * kStep + j];
      }
    }
    if (first == columns) continue;
    for (int64_t p = top; p < bottom; ++p) {
      const T* from = x + p * x_row + first;
      float* line = panel + p * kStep;
      for (int64_t j = 0; j < kStep; ++j) line[j] = first + j < columns ? load(from[j]) : 0.0f;
      for (int64_t j = 0; sums != nullptr && first + j < columns; ++j) sums[first + j] += line[j];
    }
  }
}

// Packs the same panels from the other layout: an A that is not transposed ([m, k]), and a B that is ([n, k]). Works in
// blocks of 8 x 8, the last block of a line first, because it overwrites the beginning of the next line if kStep is not
// a multiple of 8.
template <int kStep, class T>
PRUN_CLONES void copy_transposed(const T* x, int64_t x_row, int64_t columns, int64_t depth, float* to) {
  constexpr int kLast = (kStep - 1) / 8 * 8;
  const int64_t squares = depth / 8 * 8;
  for (int64_t first = 0; first < columns; first += kStep, to += panel_elements(kStep, depth)) {
    const int64_t count = columns - first < kStep ? columns - first : kStep;
    for (int64_t p = 0; p < squares; p += 8) {
      for (int j = kLast; j >= 0; j -= 8) {
        Eight rows[8];
        for (int i = 0; i < 8; ++i) {
          rows[i] = Eight{};
          if (j + i < count) load_eight(x + (first + j + i) * x_row + p, rows[i]);
        }
        transpose(rows);
        for (int i = 0; i < 8; ++i) *reinterpret_cast<Eight*>(to + (p + i) * kStep + j) = rows[i];
      }
    }
    for (int64_t p = squares; p < depth; ++p)
      for (int64_t j = 0; j < kStep; ++j) to[p * kStep + j] = j < count ? load(x[(first + j) * x_row + p]) : 0.0f;
  }
}

template <int kStep>
void pack(const PanelSource& s, float* to, float* sums) {
  const auto of = [&](const auto* x) {
    s.k_along_rows ? copy_transposed<kStep>(x, s.row, s.count, s.depth, to)
                   : copy_panels<kStep>(x, s.row, s.count, s.depth, to, sums);
  };
  s.dtype == Dtype::f32 ? of(static_cast<const float*>(s.x)) : of(static_cast<const bf16*>(s.x));
}

template <int kRows, int kColumns>
constexpr Backend backend(const char* name, void (*tile)(const Tile&, int64_t)) {
  Backend b = kPanels;
  b.name = name, b.rows = kRows, b.columns = kColumns, b.pair = 1;
  b.blocking = [](const GemmShape& s) { return panel_blocking(s, kRows, 1); };
  b.pack_a = [](const PanelSource& s, float* to) { pack<kRows>(s, to, nullptr); };
  b.pack_b = pack<kColumns>;
  b.tile = tile;
  b.reads_a_in_place = [](const GemmShape&, int64_t) { return false; };
  b.prefetch = [](const Position& at) { return prefetch_panel(at, 1); };
  return b;
}

}  // namespace

const Backend kFloatPanels = backend<4, 8>("f32", tile_default),
              kFloatPanelsAvx2 = backend<6, 16>("f32 avx2", tile_avx2),
              kFloatPanelsAvx512 = backend<14, 32>("f32 avx512", tile_avx512);

}  // namespace prun::cpu
