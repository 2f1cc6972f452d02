// Views of the ops with windows (prun/sdk/windows.h): convolutions and pools.
#pragma once
#include "op.h"
#include "prun/sdk/windows.h"

namespace prun::cuda {

// Returns the windows of images x with results y, both [samples, channels, ..]; `kernel` has the spatial sizes.
inline sdk::Windows windows_of(const OpView& view, const Shape& x, const Shape& y, const std::vector<double>& kernel) {
  const bool image = x.rank() == 3 || x.rank() == 4;
  view.expect(image && y.rank() == x.rank() && kernel.size() + 2 == x.rank() && x[0] == y[0], shape_text(x));
  sdk::Windows windows;
  windows.samples = x[0];
  sdk::set_dims(windows, kernel.size(), x.dims.subspan(2), y.dims.subspan(2), kernel, view.numbers("stride"),
                view.numbers("padding"), view.numbers("dilation"));
  return windows;
}

}  // namespace prun::cuda
