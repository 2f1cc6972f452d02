// Kernels of convolutions: moving images to the operands of GEMMs and back, and whole convolutions of groups with few
// channels. A thread computes one element of its result, or a pack of them, or a block the sum of a weight's gradient.
//
// Divisions cost more than memory here, so a thread finds its place in the image once and then counts on.
#pragma once
#include "block.cuh"
#include "window_frame.cuh"

namespace prun::cuda {

inline constexpr int kConvolutionThreads = 256;

// A convolution, of which a chunk of samples is a GEMM: columns [groups, in·taps, chunk·results].
struct Convolution {
  sdk::Windows s;
  Frame frame;
  int64_t chunk = 1;

  __host__ __device__ int64_t depth() const { return s.in * s.taps(); }
  __host__ __device__ int64_t width() const { return chunk * s.results(); }
};

// `x` is the chunk's first sample. Block (b, r) fills the taps of kernel row r: N neighbouring columns per thread, of
// channel b / blocks.
template <class T, int N>
__global__ void __launch_bounds__(kConvolutionThreads, kStreamingBlocks)
    fill_columns(const T* x, T* columns, Convolution at, unsigned blocks) {
  const Frame& f = at.frame;
  const unsigned channel = blockIdx.x / blocks;
  const int64_t position = (int64_t{blockIdx.x - channel * blocks} * kConvolutionThreads + threadIdx.x) * N;
  if (position >= at.width()) return;
  const auto place = static_cast<unsigned>(position);
  const unsigned sample = place / static_cast<unsigned>(f.results);
  const int result = static_cast<int>(place - sample * static_cast<unsigned>(f.results));
  const int row = result / f.columns.y, column = result - row * f.columns.y, tap_row = static_cast<int>(blockIdx.y);
  const int64_t sample_size = at.s.groups * at.s.in * f.inputs;
  const T* image = x + sample * sample_size + int64_t{channel} * f.inputs;
  T* to = columns + (int64_t{channel} * f.taps + tap_row * f.columns.kernel) * at.width() + position;
  for (int tap = 0; tap < f.columns.kernel; ++tap, to += at.width()) {
    Pack<T, N> pack;
    const T* from = image;
    int r = row, c = column;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int in_row = f.rows.at(r, tap_row), in_column = f.columns.at(c, tap);
      pack.v[n] = f.rows.inside(in_row) && f.columns.inside(in_column) ? from[in_row * f.columns.x + in_column] : T{};
      if (++c < f.columns.y) continue;
      c = 0;
      if (++r < f.rows.y) continue;
      r = 0, from += sample_size;
    }
    store_pack(to, pack);
  }
}

template <class T>
__global__ void __launch_bounds__(kConvolutionThreads, kStreamingBlocks)
    add_columns(const float* columns, T* x, Convolution at) {
  const Frame& f = at.frame;
  const int64_t channels = at.s.groups * at.s.in;
  for (int64_t i = first_item(); i < at.chunk * channels * f.inputs; i += item_stride()) {
    const Place at_input = f.input_at(i);
    const int64_t sample = at_input.channel / channels, channel = at_input.channel - sample * channels;
    const float* from = columns + (channel * f.taps * at.chunk + sample) * f.results;
    float sum = 0;
    for (int tap_row = 0; tap_row < f.rows.kernel; ++tap_row) {
      const int result_row = f.rows.result(at_input.row, tap_row);
      if (result_row < 0) continue;
      for (int tap = 0; tap < f.columns.kernel; ++tap) {
        const int result_column = f.columns.result(at_input.column, tap);
        if (result_column < 0) continue;
        sum += from[(tap_row * f.columns.kernel + tap) * at.width() + result_row * f.columns.y + result_column];
      }
    }
    x[i] = narrow<T>(sum);
  }
}

// Copies between [chunk, channels, results] and [channels, chunk, results], N elements at a time.
template <class T, int N>
__global__ void __launch_bounds__(kConvolutionThreads, kStreamingBlocks)
    gather_chunk(const T* y, T* to, Convolution at) {
  const int64_t row_packs = at.frame.results / N, channels = at.s.groups * at.s.out;
  for (int64_t i = first_item(); i < channels * at.chunk * row_packs; i += item_stride()) {
    const int64_t row = i / row_packs, channel = row / at.chunk, sample = row - channel * at.chunk;
    store_pack(to + i * N, load_pack<N>(y + ((sample * channels + channel) * row_packs + i - row * row_packs) * N));
  }
}
template <class T, int N>
__global__ void __launch_bounds__(kConvolutionThreads, kStreamingBlocks)
    scatter_chunk(const float* from, const T* bias, T* y, Convolution at) {
  const int64_t row_packs = at.frame.results / N, channels = at.s.groups * at.s.out;
  for (int64_t i = first_item(); i < channels * at.chunk * row_packs; i += item_stride()) {
    const int64_t row = i / row_packs, channel = row / at.chunk, sample = row - channel * at.chunk;
    const float added = bias == nullptr ? 0.0f : widen(bias[channel]);
    float values[N];
    load(from + i * N, values);
#pragma unroll
    for (int n = 0; n < N; ++n) values[n] += added;
    store<N, T>(y + ((sample * channels + channel) * row_packs + i - row * row_packs) * N, values);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kConvolutionThreads, kStreamingBlocks)
    fill_bias(const T* bias, T* y, int64_t channels, int64_t row_packs, int64_t packs) {
  for (int64_t i = first_item(); i < packs; i += item_stride()) {
    Pack<T, N> pack;
#pragma unroll
    for (int n = 0; n < N; ++n) pack.v[n] = bias[i / row_packs % channels];
    store_pack(y + i * N, pack);
  }
}

template <class T>
__global__ void __launch_bounds__(kConvolutionThreads, kStreamingBlocks)
    conv_direct(const T* x, const T* w, const T* bias, T* y, sdk::Windows s, Frame f) {
  const int64_t channels = s.groups * s.out;
  for (int64_t i = first_item(); i < s.samples * channels * f.results; i += item_stride()) {
    const Place at = f.result_at(i);
    const int64_t sample = at.channel / channels, out = at.channel - sample * channels;
    const T* image = x + (sample * s.groups + out / s.out) * s.in * f.inputs;
    const T* weight = w + out * s.in * f.taps;
    float sum = 0;
    for (int64_t c = 0; c < s.in; ++c, image += f.inputs)
      for (int tap_row = 0; tap_row < f.rows.kernel; ++tap_row, weight += f.columns.kernel) {
        const int in_row = f.rows.at(at.row, tap_row);
        if (!f.rows.inside(in_row)) continue;
        const T* from = image + int64_t{in_row} * f.columns.x;
#pragma unroll 4
        for (int tap = 0; tap < f.columns.kernel; ++tap) {
          const int in_column = f.columns.at(at.column, tap);
          if (f.columns.inside(in_column)) sum += widen(from[in_column]) * widen(weight[tap]);
        }
      }
    y[i] = narrow<T>(sum + (bias == nullptr ? 0.0f : widen(bias[out])));
  }
}
template <class T>
__global__ void __launch_bounds__(kConvolutionThreads, kStreamingBlocks)
    transpose_direct(const T* y, const T* w, T* x, sdk::Windows s, Frame f) {
  const int64_t channels = s.groups * s.in;
  for (int64_t i = first_item(); i < s.samples * channels * f.inputs; i += item_stride()) {
    const Place at = f.input_at(i);
    const int64_t sample = at.channel / channels, channel = at.channel - sample * channels, group = channel / s.in;
    const T* image = y + (sample * s.groups + group) * s.out * f.results;
    float sum = 0;
    for (int64_t o = group * s.out; o < (group + 1) * s.out; ++o, image += f.results) {
      const T* weight = w + (o * s.in + channel - group * s.in) * f.taps;
      for (int tap_row = 0; tap_row < f.rows.kernel; ++tap_row, weight += f.columns.kernel) {
        const int result_row = f.rows.result(at.row, tap_row);
        if (result_row < 0) continue;
        const T* from = image + int64_t{result_row} * f.columns.y;
#pragma unroll 4
        for (int tap = 0; tap < f.columns.kernel; ++tap) {
          const int result_column = f.columns.result(at.column, tap);
          if (result_column >= 0) sum += widen(from[result_column]) * widen(weight[tap]);
        }
      }
    }
    x[i] = narrow<T>(sum);
  }
}
// A block adds a run of kTapsAtOnce taps of a kernel's row, so that dy is read once for all of them.
inline constexpr int kTapsAtOnce = 8;
template <class T>
__global__ void __launch_bounds__(kConvolutionThreads, kStreamingBlocks)
    dw_direct(const T* x, const T* dy, float* dw, sdk::Windows s, Frame f) {
  // Teams of warps add samples alternately, because channels may be smaller than a block.
  const int thread = static_cast<int>(threadIdx.x);
  const int team = f.results < kConvolutionThreads ? (f.results + kWarp - 1) / kWarp * kWarp : kConvolutionThreads;
  const int teams = kConvolutionThreads / team;
  const bool idle = thread >= teams * team;
  const int row_runs = (f.columns.kernel + kTapsAtOnce - 1) / kTapsAtOnce, runs = f.rows.kernel * row_runs;
  for (int64_t i = blockIdx.x; i < s.groups * s.out * s.in * runs; i += gridDim.x) {
    const int64_t plane = i / runs, out = plane / s.in, c = plane - out * s.in;
    const int run = static_cast<int>(i - plane * runs), tap_row = run / row_runs,
              first_tap = (run - tap_row * row_runs) * kTapsAtOnce;
    float sums[kTapsAtOnce] = {};
    for (int64_t sample = thread / team; sample < (idle ? 0 : s.samples); sample += teams) {
      const T* image = x + ((sample * s.groups + out / s.out) * s.in + c) * f.inputs;
      const T* gradient = dy + (sample * s.groups * s.out + out) * f.results;
      for (int place = thread % team; place < f.results; place += team) {
        const int row = place / f.columns.y, column = place - row * f.columns.y, in_row = f.rows.at(row, tap_row);
        if (!f.rows.inside(in_row)) continue;
        const T* from = image + int64_t{in_row} * f.columns.x;
        const float g = widen(gradient[place]);
#pragma unroll
        for (int t = 0; t < kTapsAtOnce; ++t) {
          const int in_column = f.columns.at(column, first_tap + t);
          const bool inside = f.columns.inside(in_column) && first_tap + t < f.columns.kernel;
          sums[t] += inside ? widen(from[in_column]) * g : 0.0f;
        }
      }
    }
    block_reduce(sums, 0.0f, Add{});
#pragma unroll
    for (int t = 0; t < kTapsAtOnce; ++t)
      if (thread == 0 && first_tap + t < f.columns.kernel)
        dw[plane * f.taps + tap_row * f.columns.kernel + first_tap + t] = sums[t];
    __syncthreads();
  }
}
template <class T>
__global__ void __launch_bounds__(kConvolutionThreads, kStreamingBlocks)
    sum_channels(const T* dy, float* db, int64_t samples, int64_t channels, int64_t results) {
  for (int64_t channel = blockIdx.x; channel < channels; channel += gridDim.x) {
    float sum = 0;
#pragma unroll 4
    for (int64_t j = threadIdx.x; j < samples * results; j += kConvolutionThreads) {
      const int64_t sample = j / results;
      sum += widen(dy[(sample * channels + channel) * results + j - sample * results]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) db[channel] = sum;
    __syncthreads();
  }
}

}  // namespace prun::cuda
