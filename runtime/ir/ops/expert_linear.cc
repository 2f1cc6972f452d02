// expert_linear: y[e] = x[e]·w[e] for each expert e: a batched GEMM with one GEMM per expert, all of one size.
//
// Surprising fact: sizes are those of all slots, and kernels multiply only the slots with a token, the first `filled`
// of each source of an expert's tokens. The others contain zeros, and so do their results, because there is no bias.
// In a round r of a dropless mixture the first `filled` - r·C of a source's C slots hold a token. A round without any
// token leaves its slots unwritten, and no op of the round reads them.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_expert_linear(const Types& inputs, const Attrs& attrs) {
  require_inputs("expert_linear", inputs, 3, 3);
  require_round("expert_linear", attrs);
  const TensorType &x = inputs[0], &w = inputs[1], &filled = inputs[2];
  require_float("expert_linear", "the input", x);
  require_rank("expert_linear", "the input", x, 3);
  require_rank("expert_linear", "the weight", w, 3);
  require_same_dtype("expert_linear", "the input", x, "the weight", w);
  if (x.shape[0] != w.shape[0])
    throw plan_error(
        fmt::format("expert_linear: the input is of {} experts, the weight of {}", x.shape[0], w.shape[0]));
  require_dtype("expert_linear", "the tensor of filled slots", filled, Dtype::i32);
  require_rank("expert_linear", "the tensor of filled slots", filled, 2);
  if (filled.shape[0] != x.shape[0] || filled.shape[1] < 1 || x.shape[1] % filled.shape[1] != 0)
    throw plan_error(
        fmt::format("expert_linear: the filled slots are counted for {} sources of {} experts, the input has "
                    "{} slots of {}",
                    filled.shape[1], filled.shape[0], x.shape[1], x.shape[0]));
  if (x.shape[2] != w.shape[1])
    throw plan_error(fmt::format("expert_linear: the input's last dim is {}, each expert's weight has {} rows",
                                 x.shape[2], w.shape[1]));
  return {{x.dtype, {x.shape[0], x.shape[1], w.shape[2]}}};
}

void derive_expert_linear(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0], w = node.inputs[1], filled = node.inputs[2], dy = builder.gradient(node.outputs[0]);
  // Computes the gradient of the weights first, as linear does.
  const Attrs attrs = round_attrs(node.attrs);
  if (builder.wants(w)) {
    const TensorType type = wide_like(builder.type(w));
    const OpDef* before = node.attrs.integer("round") > 0 ? builder.gradient_op(w) : nullptr;
    if (before == &expert_linear_dw || before == &expert_linear_dw_add)
      builder.replace(w, builder.emit(expert_linear_dw_add, {x, dy, filled, builder.gradient(w)}, {type}, attrs)[0]);
    else
      builder.contribute(w, builder.emit(expert_linear_dw, {x, dy, filled}, {type}, attrs)[0]);
  }
  if (!builder.wants(x)) return;
  const bool second = in_rounds(node.attrs) && builder.gradient_op(x) == &expert_linear_dx;  // of gate and up
  const ValueId dx = builder.emit(expert_linear_dx, {dy, w, filled}, {builder.type(x)}, attrs)[0];
  if (!second) return builder.contribute(x, dx);
  // A plain add would read and write the slots of rounds without a token.
  Attrs sum = attrs;
  sum.set("sum", int64_t{1});
  builder.replace(x, builder.emit(expert_activation, {builder.gradient(x), dx, filled}, {builder.type(x)}, sum)[0]);
}

// gelu of x, or silu(x)·up, of the experts' slots; with `sum`, in backward, x + up.
Types infer_expert_activation(const Types& inputs, const Attrs& attrs) {
  require_inputs("expert_activation", inputs, 2, 3);
  require_round("expert_activation", attrs);
  require_float("expert_activation", "the input", inputs[0]);
  require_rank("expert_activation", "the input", inputs[0], 3);
  if (inputs.size() > 2) {
    require_same_dtype("expert_activation", "the gate", inputs[0], "the second tensor", inputs[1]);
    require_same_shape("expert_activation", "the gate", inputs[0], "the second tensor", inputs[1]);
  }
  require_dtype("expert_activation", "the tensor of filled slots", inputs.back(), Dtype::i32);
  require_rank("expert_activation", "the tensor of filled slots", inputs.back(), 2);
  return {inputs[0]};
}

void derive_expert_activation(GradientBuilder& builder, const NodeView& node) {
  std::vector<ValueId> inputs = node.inputs;
  inputs.insert(inputs.end() - 1, builder.gradient(node.outputs[0]));
  std::vector<TensorType> types;
  for (size_t i = 0; i + 1 < node.inputs.size(); ++i) types.push_back(builder.type(node.inputs[i]));
  const std::vector<ValueId> grads = builder.emit(expert_activation_grad, inputs, types, round_attrs(node.attrs));
  for (size_t i = 0; i < grads.size(); ++i)
    if (builder.wants(node.inputs[i])) builder.contribute(node.inputs[i], grads[i]);
}

// Each element of [.., K] is multiplied with each of the N columns. Only slots with a token are multiplied, and read in
// `slotted`, the operands with a row for each slot.
Cost cost_product(const TensorType& k_side, const TensorType& n_side, const Types& slotted, const Types& inputs,
                  const Types& outputs, const Attrs& attrs) {
  Cost cost = product_cost(2 * count(k_side) * static_cast<double>(last_dim(n_side)), inputs, outputs);
  const double routed = attrs.number("routed", 1);
  cost.flops *= routed;
  for (const TensorType& type : slotted)
    cost.bytes -= (1 - routed) * count(type) * static_cast<double>(dtype_bytes(type.dtype));
  return cost;
}
Cost cost_experts(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return cost_product(inputs[0], outputs[0], {inputs[0]}, inputs, outputs, attrs);
}
Cost cost_experts_dx(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return cost_product(outputs[0], inputs[0], {inputs[0]}, inputs, outputs, attrs);
}
Cost cost_experts_dw(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return cost_product(inputs[0], inputs[1], {inputs[0], inputs[1]}, inputs, outputs, attrs);
}

}  // namespace

const OpDef expert_linear = {.name = "expert_linear",
                             .distribution = Distribution::own,
                             .infer = infer_expert_linear,
                             .derive = derive_expert_linear,
                             .cost = cost_experts};
const OpDef expert_activation = {.name = "expert_activation",
                                 .distribution = Distribution::own,
                                 .infer = infer_expert_activation,
                                 .derive = derive_expert_activation,
                                 .cost = per_output<10>};
// The last two operands are dy and the numbers of filled slots; with two operands before, the gradients are two.
const OpDef expert_activation_grad = {.name = "expert_activation_grad",
                                      .role = OpRole::derivative,
                                      .shapes = "x [E,S,K], other as x, ... -> dx as x, dup? as x",
                                      .cost = per_output<20>};
const OpDef expert_linear_dx = {.name = "expert_linear_dx",
                                .role = OpRole::derivative,
                                .shapes = "dy [E,S,N], w [E,K,N], filled [E,P] -> dx [E,S,K]",
                                .cost = cost_experts_dx};
const OpDef expert_linear_dw = {.name = "expert_linear_dw",
                                .role = OpRole::derivative,
                                .shapes = "x [E,S,K], dy [E,S,N], filled [E,P] -> dw [E,K,N]",
                                .cost = cost_experts_dw,
                                .accumulating = &expert_linear_dw_add};
const OpDef expert_linear_dw_add = {.name = "expert_linear_dw_add",
                                    .role = OpRole::derivative,
                                    .shapes = "x [E,S,K], dy [E,S,N], filled [E,P], sum [E,K,N] -> dw [E,K,N]",
                                    .cost = cost_experts_dw};

}  // namespace prun::ops
