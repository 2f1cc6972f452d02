// Tiles of f32 rows in shared memory for attention on CUDA cores: 16x16 threads, each of which has some rows and
// columns.
//
// Rows are four floats longer than a head, so that 8 threads that read 16 bytes of 8 neighbouring rows access all 32
// banks. A thread's row of probabilities is read only by the 16 threads of its half warp.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace prun::cuda {

constexpr int kSide = 16, kThreads = kSide * kSide;

__device__ inline float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// A tile [rows][D + 4] in shared memory.
template <int D>
struct Rows {
  static constexpr int kStride = D + 4;
  float* data;
  __device__ float4 four(int row, int column) const {
    return *reinterpret_cast<const float4*>(data + row * kStride + column);
  }
  // Loads rows of global memory, `stride` elements apart; zeros beyond `there` rows or `head` columns.
  __device__ void load(int rows, const float* from, int64_t stride, int there, int head, bool vector) const {
    for (int i = threadIdx.x; i < rows * (D / 4); i += kThreads) {
      const int row = i / (D / 4), c = i % (D / 4) * 4;
      const float* source = from + row * stride + c;
      float4 x = {0, 0, 0, 0};
      if (row < there && c < head) {
        if (vector) {
          x = *reinterpret_cast<const float4*>(source);
        } else {
          x.x = source[0];
          if (c + 1 < head) x.y = source[1];
          if (c + 2 < head) x.z = source[2];
          if (c + 3 < head) x.w = source[3];
        }
      }
      *reinterpret_cast<float4*>(data + row * kStride + c) = x;
    }
  }
};

// Computes the GEMM A·Bᵀ: c[i][j] = row y + 16i of a · row x + 16j of b.
template <int D, int R, int N>
__device__ void multiply_rows(float (&c)[R][N], const Rows<D>& a, const Rows<D>& b, int y, int x) {
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < N; ++j) c[i][j] = 0;
#pragma unroll 4
  for (int k = 0; k < D; k += 4) {
    float4 right[N];
#pragma unroll
    for (int j = 0; j < N; ++j) right[j] = b.four(x + kSide * j, k);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const float4 left = a.four(y + kSide * i, k);
#pragma unroll
      for (int j = 0; j < N; ++j) c[i][j] = dot4(left, right[j], c[i][j]);
    }
  }
}

// Accumulates sum[i][4j..] += Σ over k < `columns` of p[y + 16i][k] · b[k][4x + 64j..].
template <int D, int R>
__device__ void add_gemm(float (&sum)[R][D / kSide], const float* p, int p_stride, int columns, const Rows<D>& b, int y,
                         int x) {
#pragma unroll 2
  for (int k = 0; k < columns; ++k) {
    float left[R];
#pragma unroll
    for (int i = 0; i < R; ++i) left[i] = p[(y + kSide * i) * p_stride + k];
#pragma unroll
    for (int j = 0; j < D / 64; ++j) {
      const float4 right = b.four(k, 4 * x + 64 * j);
#pragma unroll
      for (int i = 0; i < R; ++i) {
        float* to = sum[i] + 4 * j;
        to[0] = fmaf(left[i], right.x, to[0]), to[1] = fmaf(left[i], right.y, to[1]);
        to[2] = fmaf(left[i], right.z, to[2]), to[3] = fmaf(left[i], right.w, to[3]);
      }
    }
  }
}

// Reductions over the 16 threads of a row.
__device__ inline float row_max(float x) {
  for (int step = kSide / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ inline float row_sum(float x) {
  for (int step = kSide / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

}  // namespace prun::cuda
