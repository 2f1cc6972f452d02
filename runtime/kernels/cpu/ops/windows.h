// Views of the ops with windows (prun/sdk/windows.h), and rows of images.
#pragma once
#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/simd.h"
#include "prun/sdk/windows.h"

namespace prun::cpu {

using sdk::WindowDim;
using sdk::Windows;

// Returns the windows of images x with results y, both [samples, channels, ..]; `kernel` has the spatial sizes.
inline Windows windows_of(const OpView& view, const Shape& x, const Shape& y, const std::vector<double>& kernel) {
  PRUN_CHECK(x.size() == y.size() && (x.size() == 3 || x.size() == 4) && kernel.size() + 2 == x.size() && x[0] == y[0],
             std::string(view.kind()) + shape_text(x) + shape_text(y));
  Windows windows;
  windows.samples = x[0];
  const Attrs& attrs = view.attrs();
  sdk::set_dims(windows, kernel.size(), &x[2], &y[2], kernel, attrs.numbers("stride"), attrs.numbers("padding"),
                attrs.numbers("dilation"));
  return windows;
}

// Calls f(i, row, first, end) for each row of results: its row of the input, and the results [first, end) whose input
// at the tap (a, b) exists, which is empty if the row does not exist.
template <class F>
PRUN_INLINE void each_row(const Windows& s, int64_t a, int64_t b, const F& f) {
  const WindowDim &height = s.dims[0], &width = s.dims[1];
  const int64_t first = width.first(b), end = width.end(b), top = height.first(a), bottom = height.end(a);
  for (int64_t i = 0; i < height.y; ++i) {
    const bool inside = i >= top && i < bottom;
    f(i, inside ? height.at(i, a) : 0, first, inside ? end : first);
  }
}

}  // namespace prun::cpu
