// Σ out·dout of each row of each head, which the gradient of a softmax subtracts: one warp per row.
#pragma once
#include "attention.h"
#include "cuda/kernels/launch.h"

namespace prun::cuda {

inline __device__ float as_float(float x) { return x; }
inline __device__ float as_float(bf16 x) { return __bfloat162float(x); }

// Operands of dots [batch, heads, length]; `head`: elements of a head of out.
template <class T>
struct RowDots {
  int64_t batch;
  int length, heads, head;
  Heads<const T> out, dout;
  float* dots;
};

template <class T>
__global__ void dots_kernel(const RowDots<T> a) {
  const int64_t row =
      blockIdx.x * static_cast<int64_t>(blockDim.x / 32) + threadIdx.x / 32;  // row of [batch, length, heads]
  if (row >= a.batch * a.length * a.heads) return;
  const int64_t h = row % a.heads, token = row / a.heads, b = token / a.length, t = token % a.length;
  const T* out = a.out.head(b, h, a.head) + t * a.out.row;
  const T* dout = a.dout.head(b, h, a.head) + t * a.dout.row;
  float sum = 0;
  for (int e = threadIdx.x % 32; e < a.head; e += 32) sum += as_float(out[e]) * as_float(dout[e]);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) a.dots[(b * a.heads + h) * a.length + t] = sum;
}

template <class T>
void run_dots(const RowDots<T>& a, cudaStream_t stream) {
  constexpr int kDotThreads = 256;
  const int64_t rows = a.batch * a.length * a.heads;
  launch(dots_kernel<T>, blocks_for(rows, kDotThreads / 32, INT32_MAX), kDotThreads, 0, stream, a);
}

template <class T>
RowDots<T> dots_of(const AttentionBackward<T>& a) {
  return {a.sizes.batch, a.sizes.length, a.sizes.heads, a.sizes.head, a.out, a.dout, a.dots};
}

}  // namespace prun::cuda
