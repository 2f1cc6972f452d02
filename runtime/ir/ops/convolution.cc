// conv: the cross-correlation of images with a weight, and conv_transpose, its adjoint, as in PyTorch.
//
// Surprising fact: each is the other's derivative with respect to the image, and conv_dw is the gradient of the weight
// of both: of conv_transpose with the image and the gradient exchanged.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops/windows.h"

namespace prun::ops {
namespace {

// Checks the channels of the input: C of conv with a weight [O, C / groups, ..], O if `transpose`.
void require_channels(std::string_view op, const Attrs& attrs, int64_t channels, const TensorType& w, bool transpose) {
  const int64_t groups = attrs.integer("groups", 1);
  if (groups < 1) throw plan_error(fmt::format("{}: groups is {}, should be at least 1", op, groups));
  if (channels % groups != 0 || w.shape[0] % groups != 0)
    throw plan_error(fmt::format("{}: {} channels of the input and {} of the weight {} do not divide into {} groups",
                                 op, channels, w.shape[0], shape_text(w.shape), groups));
  const int64_t wanted = transpose ? w.shape[0] : w.shape[1] * groups;
  if (channels != wanted)
    throw plan_error(fmt::format("{}: the input has {} channels, the weight {} in {} group{} reads {}", op, channels,
                                 shape_text(w.shape), groups, groups == 1 ? "" : "s", wanted));
}

void require_operands(std::string_view op, const TensorType& x, const TensorType& w) {
  require_float(op, "the input", x);
  require_image(op, "the input", x);
  require_same_dtype(op, "the input", x, "the weight", w);
  require_rank(op, "the weight", w, x.shape.size());
}

Types infer_conv(const Types& inputs, const Attrs& attrs) {
  require_inputs("conv", inputs, 2, 3);
  const TensorType &x = inputs[0], &w = inputs[1];
  require_operands("conv", x, w);
  require_channels("conv", attrs, x.shape[1], w, false);
  if (inputs.size() == 3) {
    require_same_dtype("conv", "the weight", w, "the bias", inputs[2]);
    require_rank("conv", "the bias", inputs[2], 1);
    if (inputs[2].shape[0] != w.shape[0])
      throw plan_error(
          fmt::format("conv: the bias has {} elements, the weight {} outputs", inputs[2].shape[0], w.shape[0]));
  }
  const size_t rank = x.shape.size() - 2;
  Shape y = {x.shape[0], w.shape[0]};
  for (const int64_t size : window_results("conv", spatial_dims(x.shape, rank), spatial_dims(w.shape, rank),
                                           window_lists("conv", attrs, rank)))
    y.push_back(size);
  return {{x.dtype, y}};
}

// `output_padding` selects one of the sizes that conv with a stride maps to the input's.
Types infer_conv_transpose(const Types& inputs, const Attrs& attrs) {
  require_inputs("conv_transpose", inputs, 2, 2);
  const TensorType &x = inputs[0], &w = inputs[1];
  require_operands("conv_transpose", x, w);
  require_channels("conv_transpose", attrs, x.shape[1], w, true);
  const size_t rank = x.shape.size() - 2;
  const WindowLists lists = window_lists("conv_transpose", attrs, rank);
  const Shape more = window_list("conv_transpose", attrs, "output_padding", rank, 0, 0);
  Shape y = {x.shape[0], w.shape[1] * attrs.integer("groups", 1)};
  for (size_t i = 0; i < rank; i++) {
    if (more[i] >= lists.stride[i])
      throw plan_error(fmt::format("conv_transpose: output_padding is {}, should be less than the stride, {}", more[i],
                                   lists.stride[i]));
    const double reach = window_reach(w.shape[2 + i], lists.dilation[i]);
    const double size = static_cast<double>(x.shape[2 + i] - 1) * static_cast<double>(lists.stride[i]) + reach +
                        static_cast<double>(more[i] - 2 * lists.padding[i]);
    if (size < 1 || size > static_cast<double>(kMostElements))
      throw plan_error(fmt::format("conv_transpose: the result would have the size {:.0f}", size));
    y.push_back(static_cast<int64_t>(size));
  }
  if (!is_countable(y)) throw plan_error(fmt::format("conv_transpose: the result {} is too large", shape_text(y)));
  return {{x.dtype, y}};
}

Types infer_conv_dw(const Types& inputs, const Attrs& attrs) {
  require_inputs("conv_dw", inputs, 2, 2);
  const TensorType &x = inputs[0], &dy = inputs[1];
  require_image("conv_dw", "the input", x);
  require_rank("conv_dw", "the gradient", dy, x.shape.size());
  TensorType w{x.dtype, {dy.shape[1], x.shape[1] / std::max<int64_t>(attrs.integer("groups", 1), 1)}};
  for (const int64_t size : sizes_of(attrs, "kernel")) w.shape.push_back(size);
  const Types y = infer_conv({x, w}, attrs);
  require_same_shape("conv_dw", "the gradient", dy, "a convolution", y[0]);
  Types types = {wide_like(w)};
  if (attrs.integer("bias") != 0) types.push_back({wide(x.dtype), {dy.shape[1]}});
  return types;
}

// Returns the attributes of the conv_transpose from results back to an image x.
Attrs back_to(Attrs attrs, const TensorType& x, const TensorType& w) {
  const size_t rank = x.shape.size() - 2;
  const WindowLists lists = window_lists("conv", attrs, rank);
  Shape more(rank, 0);
  for (size_t i = 0; i < rank; i++)
    more[i] = (x.shape[2 + i] + 2 * lists.padding[i] - (w.shape[2 + i] - 1) * lists.dilation[i] - 1) % lists.stride[i];
  if (more != Shape(rank, 0)) attrs.set("output_padding", more);
  return attrs;
}
Attrs with_kernel(Attrs attrs, const TensorType& w, bool bias) {
  attrs.set("kernel", spatial_dims(w.shape, w.shape.size() - 2));
  if (bias) attrs.set("bias", int64_t{1});
  return attrs;
}

void derive_conv(GradientBuilder& builder, const NodeView& node) {
  const ValueId x = node.inputs[0], w = node.inputs[1], dy = builder.gradient(node.outputs[0]);
  const bool bias = node.inputs.size() == 3 && builder.wants(node.inputs[2]);
  if (builder.wants(w) || bias) {
    Types types = {wide_like(builder.type(w))};
    if (bias) types.push_back(wide_like(builder.type(node.inputs[2])));
    const std::vector<ValueId> dw =
        builder.emit(conv_dw, {x, dy}, types, with_kernel(node.attrs, builder.type(w), bias));
    if (builder.wants(w)) builder.contribute(w, dw[0]);
    if (bias) builder.contribute(node.inputs[2], dw[1]);
  }
  if (builder.wants(x))
    builder.contribute(x, builder.emit(conv_transpose, {dy, w}, {builder.type(x)},
                                       back_to(node.attrs, builder.type(x), builder.type(w)))[0]);
}

void derive_conv_transpose(GradientBuilder& builder, const NodeView& node) {
  const ValueId x = node.inputs[0], w = node.inputs[1], dy = builder.gradient(node.outputs[0]);
  Attrs attrs = node.attrs;
  attrs.erase("output_padding");
  if (builder.wants(w))
    builder.contribute(
        w, builder.emit(conv_dw, {dy, x}, {wide_like(builder.type(w))}, with_kernel(attrs, builder.type(w), false))[0]);
  if (builder.wants(x)) builder.contribute(x, builder.emit(conv, {dy, w}, {builder.type(x)}, attrs)[0]);
}

// Each element of the gradient, the image with O channels, is a sum over C / groups channels and the taps.
double flops(const TensorType& gradient, const TensorType& w) {
  return 2 * count(gradient) * count(w) / static_cast<double>(std::max<int64_t>(w.shape[0], 1));
}
Cost cost_conv(const Types& inputs, const Types& outputs, const Attrs&) {
  Cost cost = product_cost(flops(outputs[0], inputs[1]), inputs, outputs);
  if (inputs.size() > 2) cost.flops += count(outputs[0]);
  return cost;
}
Cost cost_conv_transpose(const Types& inputs, const Types& outputs, const Attrs&) {
  return product_cost(flops(inputs[0], inputs[1]), inputs, outputs);
}
Cost cost_conv_dw(const Types& inputs, const Types& outputs, const Attrs&) {
  Cost cost = product_cost(flops(inputs[1], outputs[0]), inputs, outputs);
  if (outputs.size() > 1) cost.flops += count(inputs[1]);
  return cost;
}

}  // namespace

const OpDef conv = {
    .name = "conv", .distribution = Distribution::whole, .infer = infer_conv, .derive = derive_conv, .cost = cost_conv};
const OpDef conv_transpose = {.name = "conv_transpose",
                              .distribution = Distribution::whole,
                              .infer = infer_conv_transpose,
                              .derive = derive_conv_transpose,
                              .cost = cost_conv_transpose};
const OpDef conv_dw = {.name = "conv_dw",
                       .role = OpRole::derivative,
                       .distribution = Distribution::whole,
                       .infer = infer_conv_dw,
                       .cost = cost_conv_dw};

}  // namespace prun::ops
