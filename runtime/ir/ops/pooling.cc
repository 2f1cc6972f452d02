// pooling: the maximum or the mean of each window of each channel, as in PyTorch.
//
// Surprising fact: padding never is a maximum, but a mean counts it unless count_padding is 0. The gradient of a
// maximum goes to one element, the first of equal ones.
#include <fmt/format.h>

#include "ir/ops/windows.h"

namespace prun::ops {
namespace {

Types infer_pool(const Types& inputs, const Attrs& attrs) {
  require_inputs("pooling", inputs, 1, 1);
  const TensorType& x = inputs[0];
  require_float("pooling", "the input", x);
  const size_t rank = require_image("pooling", "the input", x);
  const std::string op = attrs.text("op");
  if (op != "max" && op != "mean")
    throw plan_error(fmt::format("pooling: 'op' is '{}', should be 'max' or 'mean'", op));
  const Shape kernel = window_list("pooling", attrs, "kernel", rank, 1, 1);
  const WindowLists lists = window_lists("pooling", attrs, rank);
  // Otherwise a window may contain padding only.
  for (size_t i = 0; i < rank; i++) {
    if (2 * lists.padding[i] > kernel[i])
      throw plan_error(fmt::format("pooling: padding is {}, at most half the kernel, {}, is possible", lists.padding[i],
                                   kernel[i] / 2));
    if (lists.padding[i] > 0 && lists.dilation[i] > x.shape[2 + i])
      throw plan_error(fmt::format("pooling: dilation is {}, at most the input's size, {}, is possible with padding",
                                   lists.dilation[i], x.shape[2 + i]));
  }
  if (op == "max" || lists.dilation == Shape(rank, 1)) {
    Shape y = {x.shape[0], x.shape[1]};
    for (const int64_t size : window_results("pooling", spatial_dims(x.shape, rank), kernel, lists)) y.push_back(size);
    return {{x.dtype, y}};
  }
  throw plan_error("pooling: 'dilation' is of 'max' only");
}

Types infer_pool_grad(const Types& inputs, const Attrs& attrs) {
  const bool largest = attrs.text("op") == "max";
  require_inputs("pooling_grad", inputs, largest ? 2 : 1, largest ? 2 : 1);
  const TensorType& dy = inputs[0];
  require_image("pooling_grad", "the gradient", dy);
  TensorType x{dy.dtype, {dy.shape[0], dy.shape[1]}};
  for (const int64_t size : sizes_of(attrs, "sizes")) x.shape.push_back(size);
  require_same_shape("pooling_grad", "the gradient", dy, "a pool", infer_pool({x}, attrs)[0]);
  if (largest) require_same_shape("pooling_grad", "the input", inputs[1], "the result", x);
  return {x};
}

void derive_pool(GradientBuilder& builder, const NodeView& node) {
  const ValueId x = node.inputs[0], dy = builder.gradient(node.outputs[0]);
  if (!builder.wants(x)) return;
  const TensorType& type = builder.type(x);
  Attrs attrs = node.attrs;
  attrs.set("sizes", spatial_dims(type.shape, type.shape.size() - 2));
  std::vector<ValueId> reads = {dy};
  if (attrs.text("op") == "max") reads.push_back(x);
  builder.contribute(x, builder.emit(pooling_grad, reads, {type}, attrs)[0]);
}

// One addition or comparison for each tap of each window.
double taps(const Attrs& attrs) {
  double product = 1;
  for (const int64_t size : sizes_of(attrs, "kernel")) product *= static_cast<double>(size);
  return product;
}
Cost cost_pool(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return cost_of(taps(attrs) * count(outputs[0]), inputs, outputs);
}
Cost cost_pool_grad(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return cost_of(taps(attrs) * count(inputs[0]), inputs, outputs);
}

}  // namespace

const OpDef pooling = {.name = "pooling",
                       .distribution = Distribution::whole,
                       .infer = infer_pool,
                       .derive = derive_pool,
                       .cost = cost_pool};
const OpDef pooling_grad = {.name = "pooling_grad",
                            .role = OpRole::derivative,
                            .distribution = Distribution::whole,
                            .infer = infer_pool_grad,
                            .cost = cost_pool_grad};

}  // namespace prun::ops
