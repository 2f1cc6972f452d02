// Element-wise ops: add, mul, scale, cast, copy. Shapes are equal; there is no broadcasting.
#include <fmt/format.h>

#include "base/text.h"
#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_pair(std::string_view op, const Types& inputs) {
  require_inputs(op, inputs, 2, 2);
  require_float(op, "the first tensor", inputs[0]);
  require_same_dtype(op, "the first tensor", inputs[0], "the second", inputs[1]);
  require_same_shape(op, "the first tensor", inputs[0], "the second", inputs[1]);
  return {inputs[0]};
}
Types infer_add(const Types& inputs, const Attrs&) { return infer_pair("add", inputs); }
Types infer_mul(const Types& inputs, const Attrs&) { return infer_pair("mul", inputs); }

void derive_add(GradientBuilder& builder, const NodeView& node) {
  for (ValueId input : node.inputs)
    if (builder.wants(input)) builder.contribute(input, builder.gradient(node.outputs[0]));
}

void derive_mul(GradientBuilder& builder, const NodeView& node) {
  ValueId dy = builder.gradient(node.outputs[0]);
  for (size_t i : {0, 1}) {
    ValueId input = node.inputs[i], other = node.inputs[1 - i];
    if (builder.wants(input)) builder.contribute(input, builder.emit(mul, {dy, other}, {builder.type(input)}, {})[0]);
  }
}

Types infer_scale(const Types& inputs, const Attrs&) {
  require_inputs("scale", inputs, 1, 1);
  require_float("scale", "the input", inputs[0]);
  return {inputs[0]};
}

void derive_scale(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(x, builder.emit(scale, {builder.gradient(node.outputs[0])}, {builder.type(x)}, node.attrs)[0]);
}

Types infer_cast(const Types& inputs, const Attrs& attrs) {
  require_inputs("cast", inputs, 1, 1);
  if (inputs[0].dtype != Dtype::i32) require_float("cast", "the input", inputs[0]);
  std::string name = attrs.text("dtype");
  std::optional<Dtype> dtype = parse_dtype(name);
  if (!dtype) throw plan_error(fmt::format("cast: no dtype '{}'{}", name, did_you_mean(name, {"f32", "bf16", "f64"})));
  if (*dtype != Dtype::i32) require_float("cast", "the output", {*dtype, {}});
  return {{*dtype, inputs[0].shape}};
}

void derive_cast(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  Attrs attrs;
  attrs.set("dtype", std::string(dtype_name(builder.type(x).dtype)));
  builder.contribute(x, builder.emit(cast, {builder.gradient(node.outputs[0])}, {builder.type(x)}, attrs)[0]);
}

Types infer_copy(const Types& inputs, const Attrs&) {
  require_inputs("copy", inputs, 1, 1);
  return {inputs[0]};
}

void derive_copy(GradientBuilder& builder, const NodeView& node) {
  if (builder.wants(node.inputs[0])) builder.contribute(node.inputs[0], builder.gradient(node.outputs[0]));
}

}  // namespace

const OpDef add = {.name = "add",
                   .distribution = Distribution::elementwise,
                   .infer = infer_add,
                   .derive = derive_add,
                   .cost = per_output<1>};
const OpDef mul = {.name = "mul",
                   .distribution = Distribution::elementwise,
                   .infer = infer_mul,
                   .derive = derive_mul,
                   .cost = per_output<1>};
const OpDef scale = {.name = "scale",
                     .distribution = Distribution::elementwise,
                     .infer = infer_scale,
                     .derive = derive_scale,
                     .cost = per_output<1>};
const OpDef cast = {.name = "cast",
                    .distribution = Distribution::elementwise,
                    .moves = true,
                    .infer = infer_cast,
                    .derive = derive_cast};
const OpDef copy = {.name = "copy",
                    .distribution = Distribution::elementwise,
                    .moves = true,
                    .infer = infer_copy,
                    .derive = derive_copy};

}  // namespace prun::ops
