// The windows of prun/sdk/windows.h in the 32-bit numbers of a kernel: a channel has less than 2^31 elements, and so
// has an image with its padding.
#pragma once
#include "op.h"
#include "prun/sdk/windows.h"

namespace prun::cuda {

struct Axis {
  int x = 1, y = 1, kernel = 1, stride = 1, padding = 0, dilation = 1;

  // Returns the index of the input that the result `out` reads at `tap`; it may be outside.
  __device__ __forceinline__ int at(int out, int tap) const { return out * stride - padding + tap * dilation; }
  __device__ __forceinline__ bool inside(int in) const { return static_cast<unsigned>(in) < static_cast<unsigned>(x); }
  // Returns the result whose input at `tap` is `in`; -1 = there is none.
  __device__ __forceinline__ int result(int in, int tap) const {
    int begin = in + padding - tap * dilation;
    if (stride > 1) {
      const int result = begin / stride;
      if (begin != result * stride) return -1;
      begin = result;
    }
    return static_cast<unsigned>(begin) < static_cast<unsigned>(y) ? begin : -1;
  }
  // Returns the number of inputs that the result `out` reads.
  __device__ int inputs_of(int out) const {
    int count = 0;
    for (int tap = 0; tap < kernel; ++tap) count += inside(at(out, tap)) ? 1 : 0;
    return count;
  }
};

// An element's channel, counted over all samples, and its index, row and column in that channel.
struct Place {
  int64_t channel;
  int index, row, column;
};

struct Frame {
  Axis rows, columns;
  int inputs = 1, results = 1, taps = 1;  // elements of a channel, of its results, of a kernel

  __device__ __forceinline__ Place input_at(int64_t i) const { return place_of(i, inputs, columns.x); }
  __device__ __forceinline__ Place result_at(int64_t i) const { return place_of(i, results, columns.y); }

 private:
  static __device__ __forceinline__ Place place_of(int64_t i, int size, int width) {
    const int64_t channel = i / size;
    const int index = static_cast<int>(i - channel * size), row = index / width;
    return {channel, index, row, index - row * width};
  }
};

// Throws Failure(PRUN_ENOTSUP) for larger images.
inline Frame frame_of(const sdk::Windows& windows) {
  constexpr int64_t kMost = INT32_MAX;
  Frame frame;
  for (int i = 0; i < 2; ++i) {
    const sdk::WindowDim& dim = windows.dims[i];
    const int64_t reach = dim.x + 2 * dim.padding + dim.kernel * dim.dilation + dim.y * dim.stride;
    if (reach > kMost || windows.inputs() > kMost || windows.results() > kMost || windows.taps() > kMost)
      throw Failure(PRUN_ENOTSUP, "a channel with its padding has more than 2^31 - 1 elements");
    const auto small = [](int64_t n) { return static_cast<int>(n); };
    (i == 0 ? frame.rows : frame.columns) = {small(dim.x),      small(dim.y),       small(dim.kernel),
                                             small(dim.stride), small(dim.padding), small(dim.dilation)};
  }
  frame.inputs = static_cast<int>(windows.inputs());
  frame.results = static_cast<int>(windows.results());
  frame.taps = static_cast<int>(windows.taps());
  return frame;
}

}  // namespace prun::cuda
