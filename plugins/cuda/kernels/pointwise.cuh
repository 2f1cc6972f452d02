// Element-wise kernels over tensors of one type: y = f(x), with 16-byte accesses if all pointers allow it.
//
// F is called as f(x, y): x has an element of each input, y receives one of each output, as wide numbers.
#pragma once
#include <algorithm>

#include "block.cuh"
#include "launch.h"

namespace prun::cuda {

inline constexpr int kPointwiseThreads = 256;

template <class T, int kIn, int kOut>
struct Streams {
  const T* in[std::max(kIn, 1)];
  T* out[kOut];
};

// A thread has kAhead packs of each input in flight before it computes: at the occupancy of these kernels four loads
// per thread saturate memory.
template <int kIn>
inline constexpr int kAhead = kIn > 1 ? 2 : 4;

template <class T, int kIn, int kOut, class F>
__device__ __forceinline__ void one_element(const Streams<T, kIn, kOut>& streams, int64_t i, const F& f) {
  Wide<T> x[std::max(kIn, 1)], y[kOut];
#pragma unroll
  for (int k = 0; k < kIn; ++k) x[k] = widen(streams.in[k][i]);
  f(x, y);
#pragma unroll
  for (int k = 0; k < kOut; ++k) streams.out[k][i] = narrow<T>(y[k]);
}

// Applies f. `packs` is 0 if pointers are not aligned; the elements after the last pack are computed one by one.
template <class T, int kIn, int kOut, class F>
__global__ void __launch_bounds__(kPointwiseThreads, kStreamingBlocks)
    pointwise(Streams<T, kIn, kOut> streams, int64_t count, int64_t packs, F f) {
  constexpr int N = kPack<T>, kSteps = kAhead<kIn>;
  const int64_t first = int64_t{blockIdx.x} * kPointwiseThreads * kSteps + threadIdx.x;
  Pack<T, N> loaded[kSteps][std::max(kIn, 1)];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t pack = first + step * kPointwiseThreads;
#pragma unroll
    for (int k = 0; k < kIn; ++k)
      if (pack < packs) loaded[step][k] = reinterpret_cast<const Pack<T, N>*>(streams.in[k])[pack];
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t pack = first + step * kPointwiseThreads;
    if (pack >= packs) break;
    Wide<T> results[kOut][N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Wide<T> x[std::max(kIn, 1)], y[kOut];
#pragma unroll
      for (int k = 0; k < kIn; ++k) x[k] = loaded[step][k].wide(i);
      f(x, y);
#pragma unroll
      for (int k = 0; k < kOut; ++k) results[k][i] = y[k];
    }
#pragma unroll
    for (int k = 0; k < kOut; ++k) reinterpret_cast<Pack<T, N>*>(streams.out[k])[pack] = narrowed<T, N>(results[k]);
  }
  const int64_t thread = int64_t{blockIdx.x} * kPointwiseThreads + threadIdx.x;
#pragma unroll 1
  for (int64_t i = packs * N + thread; i < count; i += int64_t{gridDim.x} * kPointwiseThreads)
    one_element(streams, i, f);
}

template <class T, int kIn, int kOut, class F>
std::unique_ptr<Kernel> pointwise_kernel(const Streams<T, kIn, kOut>& streams, int64_t count, F f) {
  bool packed = true;
  for (int k = 0; k < kIn; ++k) packed = packed && aligned(streams.in[k]);
  for (int k = 0; k < kOut; ++k) packed = packed && aligned(streams.out[k]);
  const int64_t packs = packed ? count / kPack<T> : 0;
  const unsigned blocks = blocks_for(count, kPointwiseThreads * kAhead<kIn> * kPack<T>, INT32_MAX);
  return kernel_of([=](cudaStream_t stream) {
    launch(pointwise<T, kIn, kOut, F>, blocks, kPointwiseThreads, 0, stream, streams, count, packs, f);
  });
}

// Makes a kernel of the op's first kIn reads and all of its kOut writes, which must have the same number of elements.
template <class T, int kIn, int kOut, class F>
std::unique_ptr<Kernel> pointwise_op(const OpView& view, F f) {
  const int64_t count = view.write(0).count();
  Streams<T, kIn, kOut> streams{};
  for (int k = 0; k < kIn; ++k) {
    view.expect_count(view.read(k), count);
    streams.in[k] = view.in<T>(k);
  }
  for (int k = 0; k < kOut; ++k) {
    view.expect_count(view.write(k), count);
    streams.out[k] = view.out<T>(k);
  }
  return pointwise_kernel(streams, count, f);
}

}  // namespace prun::cuda
