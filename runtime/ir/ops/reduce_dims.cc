// reduce_dims: the sum, mean or maximum over some dims. softmax and cumsum: over one dim.
//
// Surprising fact: the gradient of a maximum is shared by all elements that have it, as torch.amax shares it.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

bool has(const std::vector<int64_t>& list, size_t dim) {
  return std::find(list.begin(), list.end(), static_cast<int64_t>(dim)) != list.end();
}
std::vector<int64_t> list_of(const Attrs& attrs, const char* name) {
  return attrs.has(name) ? attrs.integers(name) : std::vector<int64_t>();
}

Types infer_reduce_dims(const Types& inputs, const Attrs& attrs) {
  require_inputs("reduce_dims", inputs, 1, 1);
  require_float("reduce_dims", "the input", inputs[0]);
  const std::string op = attrs.text("op");
  if (op != "sum" && op != "mean" && op != "max")
    throw plan_error(fmt::format("reduce_dims: 'op' is '{}', should be 'sum', 'mean' or 'max'", op));
  const std::vector<int64_t> dims = attrs.integers("dims"), kept = list_of(attrs, "kept");
  const Shape& shape = inputs[0].shape;
  for (const int64_t dim : dims)
    if (dim < 0 || dim >= std::ssize(shape))
      throw plan_error(fmt::format("reduce_dims: the input {} has no dim {}", shape_text(shape), dim));
  if (!std::is_sorted(dims.begin(), dims.end()) || dims.empty())
    throw plan_error("reduce_dims: 'dims' should be sorted, at least one");
  Shape reduced;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!has(dims, d))
      reduced.push_back(shape[d]);
    else if (has(kept, d))
      reduced.push_back(1);
  }
  return {{attrs.integer("wide") != 0 ? wide(inputs[0].dtype) : inputs[0].dtype, reduced}};
}

Attrs program(const char* text, std::vector<int64_t> over, const Shape& shape) {
  Attrs attrs;
  attrs.set("program", std::string(text));
  attrs.set("over", std::move(over));
  attrs.set("shape", shape);
  return attrs;
}

void derive_reduce_dims(GradientBuilder& builder, const NodeView& node) {
  const ValueId x = node.inputs[0], y = node.outputs[0], dy = builder.gradient(y);
  if (!builder.wants(x)) return;
  const TensorType type = builder.type(x);
  const std::vector<int64_t> dims = node.attrs.integers("dims"), kept = list_of(node.attrs, "kept");
  int64_t mask = 0, reduced = 1;
  for (size_t d = 0; d < type.shape.size(); ++d) {
    if (!has(dims, d) || has(kept, d)) mask |= int64_t{1} << d;
    if (has(dims, d)) reduced *= type.shape[d];
  }
  const int64_t all = (int64_t{1} << type.shape.size()) - 1;
  const std::string op = node.attrs.text("op");
  if (op == "max") {
    const ValueId equal = builder.emit(pointwise, {x, y}, {type}, program("equal x0 x1", {all, mask}, type.shape))[0];
    Attrs sum = node.attrs;
    sum.set("op", std::string("sum"));
    sum.erase("wide");
    const ValueId ties = builder.emit(reduce_dims, {equal}, {builder.type(y)}, sum)[0];
    const Attrs share = program("div x1 x2; mul x0 r0", {all, mask, mask}, type.shape);
    builder.contribute(x, builder.emit(pointwise, {equal, dy, ties}, {type}, share)[0]);
    return;
  }
  const std::string text = op == "sum" ? "mul x0 1" : fmt::format("mul x0 {}", 1.0 / static_cast<double>(reduced));
  Attrs repeat = program(text.c_str(), {mask}, type.shape);
  if (node.attrs.has("rows_axis")) repeat.set("rows_axis", node.attrs.text("rows_axis"));
  builder.contribute(x, builder.emit(pointwise, {dy}, {type}, repeat)[0]);
}

Types infer_softmax(const Types& inputs, const Attrs& attrs) {
  require_inputs("softmax", inputs, 1, 1);
  require_float("softmax", "the input", inputs[0]);
  require_rank_at_least("softmax", "the input", inputs[0], attrs.has("causal") || attrs.has("window") ? 2 : 1);
  return {inputs[0]};
}

void derive_softmax(GradientBuilder& builder, const NodeView& node) {
  const ValueId x = node.inputs[0], y = node.outputs[0];
  if (!builder.wants(x)) return;
  Attrs attrs = node.attrs;
  for (const char* name : {"causal", "window", "reason"}) attrs.erase(name);  // y is 0 there, and so is its gradient
  builder.contribute(x, builder.emit(softmax_grad, {y, builder.gradient(y)}, {builder.type(x)}, attrs)[0]);
}

Types infer_cumsum(const Types& inputs, const Attrs& attrs) {
  require_inputs("cumsum", inputs, 1, 1);
  require_float("cumsum", "the input", inputs[0]);
  const int64_t dim = attrs.integer("dim");
  if (dim < 0 || dim >= std::ssize(inputs[0].shape))
    throw plan_error(fmt::format("cumsum: the input {} has no dim {}", shape_text(inputs[0].shape), dim));
  return {inputs[0]};
}

// The gradient of a cumulative sum is the cumulative sum from the other end.
void derive_cumsum(GradientBuilder& builder, const NodeView& node) {
  const ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  Attrs attrs = node.attrs;
  attrs.set("reverse", int64_t{node.attrs.integer("reverse") == 0});
  builder.contribute(x, builder.emit(cumsum, {builder.gradient(node.outputs[0])}, {builder.type(x)}, attrs)[0]);
}

}  // namespace

const OpDef reduce_dims = {.name = "reduce_dims",
                           .distribution = Distribution::own,
                           .infer = infer_reduce_dims,
                           .derive = derive_reduce_dims,
                           .cost = per_input<1>};
const OpDef softmax = {.name = "softmax",
                       .distribution = Distribution::own,
                       .infer = infer_softmax,
                       .derive = derive_softmax,
                       .cost = per_output<10>};
const OpDef softmax_grad = {
    .name = "softmax_grad", .role = OpRole::derivative, .shapes = "y, dy as y -> dx as y", .cost = per_output<4>};
const OpDef cumsum = {.name = "cumsum",
                      .distribution = Distribution::own,
                      .infer = infer_cumsum,
                      .derive = derive_cumsum,
                      .cost = per_output<1>};

}  // namespace prun::ops
