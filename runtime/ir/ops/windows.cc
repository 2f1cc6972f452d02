#include "ir/ops/windows.h"

#include <fmt/format.h>

namespace prun::ops {

constexpr int64_t kMostWindow = 1 << 20;

size_t require_image(std::string_view op, std::string_view what, const TensorType& type) {
  if (type.shape.size() == 3 || type.shape.size() == 4) return type.shape.size() - 2;
  throw plan_error(
      fmt::format("{}: {} is {}, should be [samples, channels, height, width] or, with one spatial dim, "
                  "[samples, channels, length]",
                  op, what, shape_text(type.shape)));
}

Shape window_list(std::string_view op, const Attrs& attrs, std::string_view name, size_t rank, int64_t least,
                  int64_t fallback) {
  if (!attrs.has(name)) return Shape(rank, fallback);
  const Shape list = sizes_of(attrs, name);
  if (list.size() != rank)
    throw plan_error(fmt::format("{}: {} has {} numbers, the input has {} spatial dim{}", op, name, list.size(), rank,
                                 rank == 1 ? "" : "s"));
  for (const int64_t one : list)
    if (one < least || one > kMostWindow)
      throw plan_error(fmt::format("{}: {} is {}, should be {} to {}", op, name, one, least, kMostWindow));
  return list;
}

WindowLists window_lists(std::string_view op, const Attrs& attrs, size_t rank) {
  return {window_list(op, attrs, "stride", rank, 1, 1), window_list(op, attrs, "padding", rank, 0, 0),
          window_list(op, attrs, "dilation", rank, 1, 1)};
}

double window_reach(int64_t kernel, int64_t dilation) {
  return static_cast<double>(kernel - 1) * static_cast<double>(dilation) + 1;
}

Shape window_results(std::string_view op, const Shape& x, const Shape& kernel, const WindowLists& lists) {
  Shape y;
  for (size_t i = 0; i < x.size(); i++) {
    if (x[i] < 1 || kernel[i] < 1)
      throw plan_error(fmt::format("{}: sizes are {} and {}, should be at least 1", op, x[i], kernel[i]));
    const int64_t padded = x[i] + 2 * lists.padding[i];
    const double reach = window_reach(kernel[i], lists.dilation[i]);
    if (reach > static_cast<double>(padded))
      throw plan_error(fmt::format("{}: the kernel reaches over {} elements, the input has {}{}", op,
                                   static_cast<int64_t>(reach), padded,
                                   lists.padding[i] > 0 ? " with its padding" : ""));
    y.push_back((padded - static_cast<int64_t>(reach)) / lists.stride[i] + 1);
  }
  return y;
}

Shape spatial_dims(const Shape& shape, size_t rank) { return {shape.end() - static_cast<int64_t>(rank), shape.end()}; }

}  // namespace prun::ops
