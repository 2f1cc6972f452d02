// Σ out·dout of each row of each head, which the gradient of a softmax subtracts: one warp per row.
#pragma once
#include "attention.h"
#include "cuda/kernels/launch.h"

namespace prun::cuda {

inline __device__ float as_float(float x) { return x; }
inline __device__ float as_float(bf16 x) { return __bfloat162float(x); }

template <class T>
__global__ void dots_kernel(const AttentionBackward<T> a) {
  const AttentionSizes& s = a.sizes;
  const int64_t row =
      blockIdx.x * static_cast<int64_t>(blockDim.x / 32) + threadIdx.x / 32;  // row of [batch, length, heads]
  if (row >= s.batch * s.length * s.heads) return;
  const int64_t h = row % s.heads, token = row / s.heads, b = token / s.length, t = token % s.length;
  const T* out = a.out.head(b, h, s.head) + t * a.out.row;
  const T* dout = a.dout.head(b, h, s.head) + t * a.dout.row;
  float sum = 0;
  for (int e = threadIdx.x % 32; e < s.head; e += 32) sum += as_float(out[e]) * as_float(dout[e]);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) a.dots[(b * s.heads + h) * s.length + t] = sum;
}

template <class T>
void run_dots(const AttentionBackward<T>& a, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const int64_t rows = a.sizes.batch * a.sizes.length * a.sizes.heads;
  launch(dots_kernel<T>, blocks_for(rows, kThreads / 32, INT32_MAX), kThreads, 0, stream, a);
}

}  // namespace prun::cuda
