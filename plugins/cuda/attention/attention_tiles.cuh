// Tiles of bf16 rows in shared memory, in the layout that tensor cores read, for the attention kernels.
//
// Surprising fact: the 16-byte pieces of a row are swizzled. Piece c of row r is stored at c xor (r mod 8), so that the
// pieces c of eight rows, which a load of matrices reads together, are in all 32 banks instead of four.
#pragma once
#include <cstring>

#include "attention.h"
#include "mma.h"

namespace prun::cuda {

__device__ __forceinline__ uint32_t pair_of(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

// A tile [rows][D] in shared memory; D is a multiple of 64.
template <int D>
struct Tile {
  bf16* data;

  __device__ bf16* piece(int row, int c) const { return data + row * D + ((c ^ (row & 7)) * 8); }

  // Loads rows of global memory, `stride` elements apart; zeros beyond `there` rows or `head` columns. Complete after
  // wait_copies.
  template <int Rows, int Threads>
  __device__ void load(const bf16* from, int64_t stride, int there, int head, bool vector) const {
    constexpr int kPieces = D / 8;
    for (int i = threadIdx.x; i < Rows * kPieces; i += Threads) {
      const int row = i / kPieces, c = i % kPieces;
      const bf16* source = from + row * stride + c * 8;
      bf16* to = piece(row, c);
      const bool inside = row < there && c * 8 < head;
      if (vector) {
        copy_16(to, inside ? source : from, inside);
      } else {
        for (int e = 0; e < 8; ++e) to[e] = inside && c * 8 + e < head ? source[e] : __float2bfloat16(0.0f);
      }
    }
  }

  // Loads operand a of multiply_add: rows row..row+15, columns 16k..16k+15.
  __device__ void left(uint32_t (&a)[4], int row, int k) const {
    const int lane = threadIdx.x & 31;
    load_matrices(a, piece(row + (lane & 15), 2 * k + (lane >> 4)));
  }
  // Loads operand b from the transposed tile: its columns are rows row..row+7 (pairs 0, 1) and row+8..row+15 (2, 3),
  // its rows columns 16k..16k+15.
  __device__ void right_transposed(uint32_t (&b)[4], int row, int k) const {
    const int lane = threadIdx.x & 31;
    load_matrices(b, piece(row + (lane & 7) + ((lane >> 4) << 3), 2 * k + ((lane >> 3) & 1)));
  }
  // Loads operand b: its rows are rows row..row+15, its columns 16n..16n+7 (pairs 0, 1) and 16n+8..16n+15 (2, 3).
  __device__ void right(uint32_t (&b)[4], int row, int n) const {
    const int lane = threadIdx.x & 31;
    load_matrices_transposed(b, piece(row + (lane & 15), 2 * n + (lane >> 4)));
  }
};

// Computes the GEMM c [16·M, 8·N] = A·Bᵀ, with the rows of a from `row_a` on and those of b from `row_b` on.
template <int D, int M, int N>
__device__ __forceinline__ void multiply_rows(float (&c)[M][N][4], const Tile<D>& a, int row_a, const Tile<D>& b,
                                              int row_b) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
#pragma unroll 2  // with all iterations unrolled, nvcc keeps each one's addresses in registers and spills
  for (int k = 0; k < D / 16; ++k) {
    uint32_t left[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) a.left(left[m], row_a + 16 * m, k);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t right[4];
      b.right_transposed(right, row_b + 8 * n, k);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add(c[m][n], left[m], right[0], right[1]);
        multiply_add(c[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// Accumulates c [16·M, 8·O] += p·b, with p [16·M, 8·N] in the layout of multiply_rows' accumulators, rounded to bf16; b
// has the rows from `row` on, and its columns from 8·first on.
template <int D, int M, int N, int O>
__device__ __forceinline__ void add_gemm(float (&c)[M][O][4], const float (&p)[M][N][4], const Tile<D>& b, int row,
                                         int first) {
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    uint32_t left[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      left[m][0] = pair_of(p[m][j][0], p[m][j][1]), left[m][1] = pair_of(p[m][j][2], p[m][j][3]);
      left[m][2] = pair_of(p[m][j + 1][0], p[m][j + 1][1]), left[m][3] = pair_of(p[m][j + 1][2], p[m][j + 1][3]);
    }
#pragma unroll
    for (int o = 0; o < O; o += 2) {
      uint32_t right[4];
      b.right(right, row + 8 * j, (first + o) / 2);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add(c[m][o], left[m], right[0], right[1]);
        multiply_add(c[m][o + 1], left[m], right[2], right[3]);
      }
    }
  }
}

}  // namespace prun::cuda
