// Kernels of convolutions: moving images to the operands of GEMMs and back, and whole convolutions of groups with few
// channels. A thread computes one element of its result, or a block the sum of a weight's gradient.
#pragma once
#include "block.cuh"
#include "prun/sdk/windows.h"

namespace prun::cuda {

// A convolution, of which a chunk of samples is a GEMM: columns [groups, in·taps, chunk·results].
struct Convolution {
  sdk::Windows s;
  int64_t chunk = 1;

  __host__ __device__ int64_t depth() const { return s.in * s.taps(); }
  __host__ __device__ int64_t width() const { return chunk * s.results(); }
};

// Where the element at `tap` of result `at` is in a channel; -1 = in the padding.
__device__ __forceinline__ int64_t input_at(const sdk::Windows& s, int64_t at, int64_t tap) {
  const int64_t row = s.dims[0].at(at / s.dims[1].y, tap / s.dims[1].kernel);
  const int64_t column = s.dims[1].at(at % s.dims[1].y, tap % s.dims[1].kernel);
  if (row < 0 || row >= s.dims[0].x || column < 0 || column >= s.dims[1].x) return -1;
  return row * s.dims[1].x + column;
}
// Returns the index along a dim of the result whose input at `tap` is `at`; -1 = there is none.
__device__ __forceinline__ int64_t result_along(const sdk::WindowDim& dim, int64_t at, int64_t tap) {
  const int64_t begin = at + dim.padding - tap * dim.dilation;
  return begin < 0 || begin % dim.stride != 0 || begin / dim.stride >= dim.y ? -1 : begin / dim.stride;
}
// Returns the result whose input at `tap` is element `at` of a channel; -1 = there is none.
__device__ __forceinline__ int64_t result_at(const sdk::Windows& s, int64_t at, int64_t tap) {
  const int64_t row = result_along(s.dims[0], at / s.dims[1].x, tap / s.dims[1].kernel);
  const int64_t column = result_along(s.dims[1], at % s.dims[1].x, tap % s.dims[1].kernel);
  return row < 0 || column < 0 ? -1 : row * s.dims[1].y + column;
}

// `x` is the chunk's first sample.
template <class T>
__global__ void fill_columns(const T* x, T* columns, Convolution at) {
  const sdk::Windows& s = at.s;
  const int64_t results = s.results(), count = s.groups * at.depth() * at.width();
  for (int64_t i = first_item(); i < count; i += item_stride()) {
    const int64_t result = i % results, sample = i / results % at.chunk, row = i / at.width();
    const int64_t from = input_at(s, result, row % s.taps());
    columns[i] = from < 0 ? T{} : x[(sample * s.groups * s.in + row / s.taps()) * s.inputs() + from];
  }
}
template <class T>
__global__ void add_columns(const float* columns, T* x, Convolution at) {
  const sdk::Windows& s = at.s;
  const int64_t inputs = s.inputs(), channels = s.groups * s.in;
  for (int64_t i = first_item(); i < at.chunk * channels * inputs; i += item_stride()) {
    const int64_t channel = i / inputs % channels, sample = i / inputs / channels;
    float sum = 0;
    for (int64_t tap = 0; tap < s.taps(); ++tap) {
      const int64_t result = result_at(s, i % inputs, tap);
      if (result >= 0) sum += columns[((channel * s.taps() + tap) * at.chunk + sample) * s.results() + result];
    }
    x[i] = narrow<T>(sum);
  }
}

// Copies between [chunk, channels, results] and [channels, chunk, results].
template <class T>
__global__ void gather_chunk(const T* y, T* to, Convolution at) {
  const int64_t results = at.s.results(), channels = at.s.groups * at.s.out;
  for (int64_t i = first_item(); i < channels * at.width(); i += item_stride())
    to[i] = y[(i / results % at.chunk * channels + i / at.width()) * results + i % results];
}
template <class T>
__global__ void scatter_chunk(const float* from, const T* bias, T* y, Convolution at) {
  const int64_t results = at.s.results(), channels = at.s.groups * at.s.out;
  for (int64_t i = first_item(); i < channels * at.width(); i += item_stride()) {
    const int64_t channel = i / at.width();
    const float added = bias == nullptr ? 0.0f : widen(bias[channel]);
    y[(i / results % at.chunk * channels + channel) * results + i % results] = narrow<T>(from[i] + added);
  }
}

template <class T>
__global__ void conv_direct(const T* x, const T* w, const T* bias, T* y, sdk::Windows s) {
  const int64_t results = s.results(), channels = s.groups * s.out;
  for (int64_t i = first_item(); i < s.samples * channels * results; i += item_stride()) {
    const int64_t out = i / results % channels, sample = i / results / channels;
    const T* image = x + (sample * s.groups + out / s.out) * s.in * s.inputs();
    const T* weight = w + out * s.in * s.taps();
    float sum = 0;
    for (int64_t c = 0; c < s.in; ++c)
      for (int64_t tap = 0; tap < s.taps(); ++tap) {
        const int64_t from = input_at(s, i % results, tap);
        if (from >= 0) sum += widen(image[c * s.inputs() + from]) * widen(weight[c * s.taps() + tap]);
      }
    y[i] = narrow<T>(sum + (bias == nullptr ? 0.0f : widen(bias[out])));
  }
}
template <class T>
__global__ void transpose_direct(const T* y, const T* w, T* x, sdk::Windows s) {
  const int64_t inputs = s.inputs(), channels = s.groups * s.in;
  for (int64_t i = first_item(); i < s.samples * channels * inputs; i += item_stride()) {
    const int64_t channel = i / inputs % channels, sample = i / inputs / channels, group = channel / s.in;
    float sum = 0;
    for (int64_t o = group * s.out; o < (group + 1) * s.out; ++o)
      for (int64_t tap = 0; tap < s.taps(); ++tap) {
        const int64_t result = result_at(s, i % inputs, tap);
        if (result < 0) continue;
        sum += widen(y[(sample * s.groups * s.out + o) * s.results() + result]) *
               widen(w[(o * s.in + channel % s.in) * s.taps() + tap]);
      }
    x[i] = narrow<T>(sum);
  }
}
template <class T>
__global__ void dw_direct(const T* x, const T* dy, float* dw, sdk::Windows s) {
  const int64_t results = s.results();
  for (int64_t i = blockIdx.x; i < s.groups * s.out * s.in * s.taps(); i += gridDim.x) {
    const int64_t tap = i % s.taps(), c = i / s.taps() % s.in, out = i / s.taps() / s.in;
    float sum = 0;
    for (int64_t j = threadIdx.x; j < s.samples * results; j += blockDim.x) {
      const int64_t from = input_at(s, j % results, tap), sample = j / results;
      if (from < 0) continue;
      sum += widen(x[((sample * s.groups + out / s.out) * s.in + c) * s.inputs() + from]) *
             widen(dy[(sample * s.groups * s.out + out) * results + j % results]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) dw[i] = sum;
    __syncthreads();
  }
}
template <class T>
__global__ void sum_channels(const T* dy, float* db, int64_t samples, int64_t channels, int64_t results) {
  for (int64_t channel = blockIdx.x; channel < channels; channel += gridDim.x) {
    float sum = 0;
    for (int64_t j = threadIdx.x; j < samples * results; j += blockDim.x)
      sum += widen(dy[(j / results * channels + channel) * results + j % results]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) db[channel] = sum;
    __syncthreads();
  }
}

}  // namespace prun::cuda
