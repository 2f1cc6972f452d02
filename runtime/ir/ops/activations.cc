// gelu, relu, tanh and silu(gate)·up. gelu's derivative needs its input; those of relu and tanh need only their output,
// which the next op retains anyway. silu(x) = x·sigmoid(x); with `up` it is the SwiGLU of Shazeer, GLU Variants Improve
// Transformer, 2020.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_gelu(const Types& inputs, const Attrs& attrs) {
  require_inputs("gelu", inputs, 1, 1);
  require_float("gelu", "the input", inputs[0]);
  std::string form = attrs.text("approximate", "tanh");
  if (form != "tanh" && form != "none")
    throw plan_error(fmt::format("gelu: approximate is '{}', should be 'tanh' or 'none'", form));
  return {inputs[0]};
}

void derive_gelu(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  ValueId dy = builder.gradient(node.outputs[0]);
  builder.contribute(x, builder.emit(gelu_dx, {x, dy}, {builder.type(x)}, node.attrs)[0]);
}

Types infer_unary(const OpDef& op, const Types& inputs) {
  require_inputs(op.name, inputs, 1, 1);
  require_float(op.name, "the input", inputs[0]);
  return {inputs[0]};
}
Types infer_relu(const Types& inputs, const Attrs&) { return infer_unary(relu, inputs); }
Types infer_tanh(const Types& inputs, const Attrs&) { return infer_unary(tanh, inputs); }

void derive_by_output(GradientBuilder& builder, const NodeView& node, const OpDef& derivative) {
  ValueId x = node.inputs[0], y = node.outputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(x, builder.emit(derivative, {y, builder.gradient(y)}, {builder.type(x)}, {})[0]);
}
void derive_relu(GradientBuilder& builder, const NodeView& node) { derive_by_output(builder, node, relu_dx); }
void derive_tanh(GradientBuilder& builder, const NodeView& node) { derive_by_output(builder, node, tanh_dx); }

Types infer_silu_mul(const Types& inputs, const Attrs&) {
  require_inputs("silu_mul", inputs, 2, 2);
  require_float("silu_mul", "the gate", inputs[0]);
  require_same_dtype("silu_mul", "the gate", inputs[0], "the second tensor", inputs[1]);
  require_same_shape("silu_mul", "the gate", inputs[0], "the second tensor", inputs[1]);
  return {inputs[0]};
}

void derive_silu_mul(GradientBuilder& builder, const NodeView& node) {
  ValueId gate = node.inputs[0], up = node.inputs[1];
  if (!builder.wants(gate) && !builder.wants(up)) return;
  std::vector<ValueId> grads = builder.emit(silu_mul_grad, {gate, up, builder.gradient(node.outputs[0])},
                                            {builder.type(gate), builder.type(up)}, {});
  for (size_t i : {0, 1})
    if (builder.wants(node.inputs[i])) builder.contribute(node.inputs[i], grads[i]);
}

}  // namespace

const OpDef gelu = {.name = "gelu",
                    .distribution = Distribution::elementwise,
                    .infer = infer_gelu,
                    .derive = derive_gelu,
                    .cost = per_output<10>};
const OpDef gelu_dx = {
    .name = "gelu_dx", .role = OpRole::derivative, .shapes = "x, dy as x -> dx as x", .cost = per_output<20>};
const OpDef relu = {.name = "relu",
                    .distribution = Distribution::elementwise,
                    .infer = infer_relu,
                    .derive = derive_relu,
                    .cost = per_output<1>,
                    .word = true};
const OpDef relu_dx = {
    .name = "relu_dx", .role = OpRole::derivative, .shapes = "y, dy as y -> dx as y", .cost = per_output<1>};
const OpDef tanh = {.name = "tanh",
                    .distribution = Distribution::elementwise,
                    .infer = infer_tanh,
                    .derive = derive_tanh,
                    .cost = per_output<10>,
                    .word = true};
const OpDef tanh_dx = {
    .name = "tanh_dx", .role = OpRole::derivative, .shapes = "y, dy as y -> dx as y", .cost = per_output<3>};
const OpDef silu_mul = {.name = "silu_mul",
                        .distribution = Distribution::elementwise,
                        .infer = infer_silu_mul,
                        .derive = derive_silu_mul,
                        .cost = per_output<7>};
const OpDef silu_mul_grad = {.name = "silu_mul_grad",
                             .role = OpRole::derivative,
                             .shapes = "gate, up as gate, dy as gate -> dgate as gate, dup as gate",
                             .cost = per_output<14>};

}  // namespace prun::ops
