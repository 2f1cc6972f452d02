// Shape rules that convolutions and pools share: lists of numbers for each spatial dim, and the size of a result.
#pragma once
#include <string_view>

#include "ir/ops/rules.h"

namespace prun::ops {

// Numbers of a convolution or pool, one for each spatial dim.
struct WindowLists {
  Shape stride, padding, dilation;
};

// Requires [samples, channels, width] or [samples, channels, height, width]; returns the number of spatial dims.
size_t require_image(std::string_view op, std::string_view what, const TensorType& type);
// Returns the list `name` of an op with `rank` spatial dims, by default `fallback` in each. Throws plan_error unless
// each number is from `least` to 2^20.
Shape window_list(std::string_view op, const Attrs& attrs, std::string_view name, size_t rank, int64_t least,
                  int64_t fallback);
WindowLists window_lists(std::string_view op, const Attrs& attrs, size_t rank);
// Returns the elements that a kernel reaches over, as a floating-point number, because an integer could overflow.
double window_reach(int64_t kernel, int64_t dilation);
// Returns the spatial dims of the result. Throws plan_error if a kernel is larger than the padded input.
Shape window_results(std::string_view op, const Shape& x, const Shape& kernel, const WindowLists& lists);
// Returns the last `rank` dims.
Shape spatial_dims(const Shape& shape, size_t rank);

}  // namespace prun::ops
