// The windows of convolutions and pools: which elements of the input each element of the result reads, for the kernels
// of all devices.
//
// A sample has two spatial dims; with one, the first has the size 1.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define PRUN_WINDOWS_INLINE __host__ __device__ inline
#else
#define PRUN_WINDOWS_INLINE inline
#endif

namespace prun::sdk {

struct WindowDim {
  int64_t x = 1, y = 1;  // size of the input and of the result
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;

  // Returns the index of the input that the result `out` reads at `tap` of the kernel; it may be outside.
  PRUN_WINDOWS_INLINE int64_t at(int64_t out, int64_t tap) const { return out * stride - padding + tap * dilation; }
  // Return the first result whose input at `tap` exists, and the end of these results.
  PRUN_WINDOWS_INLINE int64_t first(int64_t tap) const { return clipped(padding - tap * dilation); }
  PRUN_WINDOWS_INLINE int64_t end(int64_t tap) const {
    const int64_t last = clipped(x + padding - tap * dilation), begin = first(tap);
    return last < begin ? begin : last;
  }

 private:
  // Returns the number of results whose windows begin less than `at` after the padding's start.
  PRUN_WINDOWS_INLINE int64_t clipped(int64_t at) const {
    if (at <= 0) return 0;
    const int64_t count = (at + stride - 1) / stride;
    return count < y ? count : y;
  }
};

// Channels count within a group; a pool has a group for each channel.
struct Windows {
  int64_t samples = 1, groups = 1, in = 1, out = 1;
  WindowDim dims[2];

  PRUN_WINDOWS_INLINE int64_t inputs() const { return dims[0].x * dims[1].x; }  // of a channel
  PRUN_WINDOWS_INLINE int64_t results() const { return dims[0].y * dims[1].y; }
  PRUN_WINDOWS_INLINE int64_t taps() const { return dims[0].kernel * dims[1].kernel; }
};

// Sets the spatial dims. `x`, `y` and `kernel` have `rank` sizes; the lists have `rank` numbers or are empty.
template <class Sizes, class Kernel, class List>
void set_dims(Windows& windows, size_t rank, const Sizes& x, const Sizes& y, const Kernel& kernel, const List& stride,
              const List& padding, const List& dilation) {
  for (size_t i = 0; i < rank; i++) {
    WindowDim& dim = windows.dims[2 - rank + i];
    dim.x = x[i], dim.y = y[i], dim.kernel = static_cast<int64_t>(kernel[i]);
    if (!stride.empty()) dim.stride = static_cast<int64_t>(stride[i]);
    if (!padding.empty()) dim.padding = static_cast<int64_t>(padding[i]);
    if (!dilation.empty()) dim.dilation = static_cast<int64_t>(dilation[i]);
  }
}

}  // namespace prun::sdk
