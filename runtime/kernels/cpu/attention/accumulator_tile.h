// Small f32 GEMMs with accumulators in registers and A at any strides. Attention is built from them, because a library
// call costs more than such a tile.
//
// Everything is inlined into a function that is compiled for one vector length (with_lanes in vectors.h).
#pragma once
#include <cstdint>

#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {

inline constexpr int64_t kTileColumns = 16;  // columns are padded to a multiple of this

// A and B of a GEMM: element (i, p) of A is at i · a_row + p · a_column, B is stored by rows.
struct Operands {
  const float* a;
  int64_t a_row, a_column;
  const float* b;
  int64_t b_row;

  // Skips the first p columns of A and rows of B.
  PRUN_INLINE Operands advance(int64_t p) const { return {a + p * a_column, a_row, a_column, b + p * b_row, b_row}; }
};

// Elements of A and B: floats, or pairs of bf16 that are neighbours in K, which AVX512_BF16 multiplies and adds.
enum class Elements : uint8_t { floats, bf16_pairs };

// A tile of rows x (vectors · lanes) accumulators.
template <int lanes, int rows, int vectors>
struct AccumulatorTile {
  Floats<lanes> at[rows][vectors];

  PRUN_INLINE void clear() {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) at[r][v] = Floats<lanes>{};
  }
  PRUN_INLINE void load(const float* from, int64_t row) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) at[r][v] = load_lanes<lanes>(from + r * row + v * lanes);
  }
  PRUN_INLINE void store(float* to, int64_t row) const {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) store_lanes<lanes>(to + r * row + v * lanes, at[r][v]);
  }
  PRUN_INLINE void scale(const float* factors) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) at[r][v] *= factors[r];
  }
  // Adds the outer product of a column of A and a row of B to the rows [first, end).
  template <Elements kElements = Elements::floats>
  PRUN_INLINE void add_outer(const float* a, int64_t a_row, const float* b, int first = 0, int end = rows) {
    Floats<lanes> row[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) row[v] = load_lanes<lanes>(b + v * lanes);
#pragma GCC unroll 8
    for (int r = first; r < end; ++r) {
      if constexpr (kElements == Elements::bf16_pairs) {
        Floats<lanes> pair;
        asm("vbroadcastss %1, %0" : "=v"(pair) : "m"(a[r * a_row]));
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) asm("vdpbf16ps %2, %1, %0" : "+v"(at[r][v]) : "v"(pair), "v"(row[v]));
        continue;
      }
      const float x = a[r * a_row];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) at[r][v] += x * row[v];
    }
  }
  // Adds A·B over k columns of A. The cursor prefetches one line per column; results do not depend on it.
  template <Elements kElements = Elements::floats>
  PRUN_INLINE void add(const Operands& t, int64_t k, Prefetcher& prefetch) {
    const float *a = t.a, *b = t.b;
    Prefetcher::Cursor cursor = prefetch.next();
    for (int64_t p = 0; p < k; ++p, a += t.a_column, b += t.b_row) {
      add_outer<kElements>(a, t.a_row, b);
      cursor.step();
    }
    prefetch.keep(cursor);
  }
  // Adds A·B over `rows` columns of a lower (upper) triangular A.
  PRUN_INLINE void add_lower(const Operands& t) {
#pragma GCC unroll 8
    for (int p = 0; p < rows; ++p) add_outer(t.a + p * t.a_column, t.a_row, t.b + p * t.b_row, p, rows);
  }
  PRUN_INLINE void add_upper(const Operands& t) {
#pragma GCC unroll 8
    for (int p = 0; p < rows; ++p) add_outer(t.a + p * t.a_column, t.a_row, t.b + p * t.b_row, 0, p + 1);
  }
};

// Calls f.operator()<vectors>(first column) for blocks of two vectors of columns; the last block has one or two.
template <int lanes, class F>
PRUN_INLINE void each_columns(int64_t columns, const F& f) {
  int64_t j = 0;
  for (; j + 2 * lanes <= columns; j += 2 * lanes) f.template operator()<2>(j);
  for (; j < columns; j += lanes) f.template operator()<1>(j);
}

// Rows of accumulators, two vectors wide, that the registers hold.
template <int lanes>
inline constexpr int kBlockRows = lanes == 16 ? 8 : 4;

// Calls f.operator()<rows>(first row) for rows [from, end): blocks of `most`, a power of two, then smaller ones.
template <int most, class F>
PRUN_INLINE void each_rows(int64_t from, int64_t end, const F& f) {
  for (; from + most <= end; from += most) f.template operator()<most>(from);
  if constexpr (most > 1) each_rows<most / 2>(from, end, f);
}

}  // namespace prun::cpu
