// expert_linear: y[e] = x[e]·w[e] for each expert e: a batched GEMM with one GEMM per expert, all of one size.
//
// Slots without a token contain zeros, and so do their results, because there is no bias.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_expert_linear(const Types& inputs, const Attrs&) {
  require_inputs("expert_linear", inputs, 2, 2);
  const TensorType &x = inputs[0], &w = inputs[1];
  require_float("expert_linear", "the input", x);
  require_rank("expert_linear", "the input", x, 3);
  require_rank("expert_linear", "the weight", w, 3);
  require_same_dtype("expert_linear", "the input", x, "the weight", w);
  if (x.shape[0] != w.shape[0])
    throw plan_error(
        fmt::format("expert_linear: the input is of {} experts, the weight of {}", x.shape[0], w.shape[0]));
  if (x.shape[2] != w.shape[1])
    throw plan_error(fmt::format("expert_linear: the input's last dim is {}, each expert's weight has {} rows",
                                 x.shape[2], w.shape[1]));
  return {{x.dtype, {x.shape[0], x.shape[1], w.shape[2]}}};
}

void derive_expert_linear(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0], w = node.inputs[1], dy = builder.gradient(node.outputs[0]);
  // Computes the gradient of the weights first, as linear does.
  if (builder.wants(w))
    builder.contribute(w, builder.emit(expert_linear_dw, {x, dy}, {wide_like(builder.type(w))}, {})[0]);
  if (builder.wants(x)) builder.contribute(x, builder.emit(expert_linear_dx, {dy, w}, {builder.type(x)}, {})[0]);
}

// Each element of [.., K] is multiplied with each of the N columns.
Cost cost_product(const TensorType& k_side, const TensorType& n_side, const Types& inputs, const Types& outputs) {
  return product_cost(2 * count(k_side) * static_cast<double>(last_dim(n_side)), inputs, outputs);
}
Cost cost_experts(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_product(inputs[0], outputs[0], inputs, outputs);
}
Cost cost_experts_dx(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_product(outputs[0], inputs[0], inputs, outputs);
}
Cost cost_experts_dw(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_product(inputs[0], inputs[1], inputs, outputs);
}

}  // namespace

const OpDef expert_linear = {.name = "expert_linear",
                             .distribution = Distribution::own,
                             .infer = infer_expert_linear,
                             .derive = derive_expert_linear,
                             .cost = cost_experts};
const OpDef expert_linear_dx = {.name = "expert_linear_dx",
                                .role = OpRole::derivative,
                                .shapes = "dy [E,S,N], w [E,K,N] -> dx [E,S,K]",
                                .cost = cost_experts_dx};
const OpDef expert_linear_dw = {.name = "expert_linear_dw",
                                .role = OpRole::derivative,
                                .shapes = "x [E,S,K], dy [E,S,N] -> dw [E,K,N]",
                                .cost = cost_experts_dw,
                                .accumulating = &expert_linear_dw_add};
const OpDef expert_linear_dw_add = {.name = "expert_linear_dw_add",
                                    .role = OpRole::derivative,
                                    .shapes = "x [E,S,K], dy [E,S,N], sum [E,K,N] -> dw [E,K,N]",
                                    .cost = cost_experts_dw};

}  // namespace prun::ops
