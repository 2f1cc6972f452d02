// Attention over tokens that are split over ranks (Liu, Zaharia, Abbeel: Ring Attention, 2023; Brandon et al.: Striped
// Attention, 2023, for balanced chunks): keys and values pass around a ring of ranks, queries remain on their rank.
//
// Surprising fact: ring_attention and its derivative are never executed. After autodiff, compile/ring_attention.h
// expands them to the other ops here, sends and receives.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

// The shape rules of attention also hold for the rank's part.
Types infer_ring_attention(const Types& inputs, const Attrs& attrs) {
  Types types = attention.infer(inputs, attrs);
  if (attrs.text("tokens_axis").empty())
    throw plan_error("ring_attention: tokens_axis is not given; attention within a rank is the op attention");
  require_chunks("ring_attention", attrs, inputs[0].shape[1]);
  return types;
}

void derive_ring_attention(GradientBuilder& builder, const NodeView& node) {
  ValueId qkv = node.inputs[0], out = node.outputs[0];
  if (!builder.wants(qkv)) return;
  std::vector<ValueId> grad = builder.emit(ring_attention_grad, {qkv, out, builder.gradient(out), node.outputs[1]},
                                           {builder.type(qkv)}, node.attrs);
  builder.contribute(qkv, grad[0]);
}

// Cost of one hop; the number of hops depends on the mesh.
Cost cost_ring_attention(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return attention.cost(inputs, outputs, attrs);
}
Cost cost_ring_attention_grad(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return attention_grad.cost(inputs, outputs, attrs);
}

// Returns the FLOPs of one GEMM of a rank's queries with another rank's keys, for all heads. With balanced chunks, half
// of each hop is masked.
double hop_flops(const TensorType& qkv, const Attrs& attrs) {
  double heads = static_cast<double>(attrs.integer("heads", 1));
  double all = heads + 2 * static_cast<double>(attrs.integer("kv_heads", attrs.integer("heads", 1)));
  return 2 * count(qkv) * heads / all * static_cast<double>(qkv.shape[1]) * (attrs.integer("causal") ? 0.5 : 1);
}
Cost cost_block(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return product_cost(2 * hop_flops(inputs[0], attrs), inputs, outputs);
}
Cost cost_block_grad(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  Cost cost = product_cost(5 * hop_flops(inputs[0], attrs), inputs, outputs);
  cost.model *= 0.8;  // like attention_grad
  return cost;
}

Cost cost_copy_kv(const Types&, const Types& outputs, const Attrs&) { return cost_of(0, outputs, outputs); }

}  // namespace

const OpDef ring_attention = {.name = "ring_attention",
                              .op_class = OpClass::lowered,
                              .distribution = Distribution::own,
                              .infer = infer_ring_attention,
                              .derive = derive_ring_attention,
                              .cost = cost_ring_attention};
const OpDef ring_attention_grad = {.name = "ring_attention_grad",
                                   .op_class = OpClass::lowered,
                                   .role = OpRole::derivative,
                                   .cost = cost_ring_attention_grad};
const OpDef attention_block = {.name = "attention_block",
                               .side_first = 1,
                               .shapes =
                                   "qkv [..,W], kv [..,C], out? [..,D], lse? #R*heads -> out [..,D], lse #R*heads; W = "
                                   "C+D, C*heads = D*2*kv_heads",
                               .cost = cost_block};
const OpDef attention_block_grad = {.name = "attention_block_grad",
                                    .role = OpRole::derivative,
                                    .shapes =
                                        "qkv [..,W], kv [..,C], out [..,D], dout [..,D], lse #R*heads, dq? [..,D] -> "
                                        "dq [..,D], dkv [..,C]; W = C+D, C*heads = D*2*kv_heads",
                                    .cost = cost_block_grad};
const OpDef copy_kv = {.name = "copy_kv", .shapes = "qkv [..,W] -> kv [..,C]", .cost = cost_copy_kv};
const OpDef join_qkv = {.name = "join_qkv", .shapes = "dq #A, dkv #B -> dqkv #A+B"};

}  // namespace prun::ops
