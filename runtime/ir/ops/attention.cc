// Multi-head attention: softmax(q·kᵀ/√h)·v with h = width/heads. With fewer heads of keys and values than of queries,
// neighboring query heads share them (Ainslie et al., GQA, 2023). Only the log-sum-exp of each row is retained; the
// derivative recomputes the probabilities from it (Dao et al., FlashAttention, 2022).
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

// Returns the size of a head, from qkv's last dim of heads + 2·kv_heads heads.
int64_t head_size(const TensorType& qkv, const Attrs& attrs) {
  return last_dim(qkv) / (attrs.integer("heads", 1) + 2 * kv_heads(attrs));
}

Types infer_attention(const Types& inputs, const Attrs& attrs) {
  require_inputs("attention", inputs, 1, 1);
  const TensorType& qkv = inputs[0];
  require_float("attention", "qkv", qkv);
  require_rank("attention", "qkv", qkv, 3);
  int64_t heads = attrs.integer("heads", 1), shared = kv_heads(attrs);
  if (heads < 1) throw plan_error(fmt::format("attention: {} heads; at least 1 is needed", heads));
  if (shared < 1) throw plan_error(fmt::format("attention: {} kv_heads; at least 1 is needed", shared));
  if (heads % shared != 0)
    throw plan_error(fmt::format("attention: {} heads cannot share {} kv_heads evenly", heads, shared));
  if (attrs.has("kv_heads") && last_dim(qkv) % (heads + 2 * shared) != 0)
    throw plan_error(fmt::format("attention: qkv's last dim is {}, should be a multiple of {}: {} heads and twice {}",
                                 last_dim(qkv), heads + 2 * shared, heads, shared));
  if (last_dim(qkv) % 3 != 0 && !attrs.has("kv_heads"))
    throw plan_error(fmt::format("attention: qkv's last dim is {}, should be three times the width", last_dim(qkv)));
  if (last_dim(qkv) % (heads + 2 * shared) != 0)
    throw plan_error(fmt::format("attention: width {} is not divisible by {} heads", last_dim(qkv) / 3, heads));
  int64_t batch = qkv.shape[0], length = qkv.shape[1];
  return {{qkv.dtype, {batch, length, heads * head_size(qkv, attrs)}}, {wide(qkv.dtype), {batch, heads, length}}};
}

void derive_attention(GradientBuilder& builder, const NodeView& node) {
  ValueId qkv = node.inputs[0], out = node.outputs[0];
  if (!builder.wants(qkv)) return;
  std::vector<ValueId> grad =
      builder.emit(attention_grad, {qkv, out, builder.gradient(out), node.outputs[1]}, {builder.type(qkv)}, node.attrs);
  builder.contribute(qkv, grad[0]);
}

// Returns the FLOPs of one GEMM [T,h]·[h,T] for all heads, halved if the upper triangle is masked.
double product_flops(const TensorType& qkv, const Attrs& attrs) {
  double batch = static_cast<double>(qkv.shape[0]), length = static_cast<double>(qkv.shape[1]);
  double width = static_cast<double>(attrs.integer("heads", 1) * head_size(qkv, attrs));
  return 2 * batch * length * length * width * (attrs.integer("causal") ? 0.5 : 1);
}
Cost cost_attention(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return product_cost(2 * product_flops(inputs[0], attrs), inputs, outputs);
}
Cost cost_attention_grad(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  Cost cost = product_cost(5 * product_flops(inputs[0], attrs), inputs, outputs);
  cost.model *= 0.8;  // one of the five recomputes the scores
  return cost;
}

}  // namespace

const OpDef attention = {.name = "attention",
                         .distribution = Distribution::own,
                         .side_first = 1,
                         .infer = infer_attention,
                         .derive = derive_attention,
                         .cost = cost_attention};
const OpDef attention_grad = {.name = "attention_grad",
                              .role = OpRole::derivative,
                              .shapes = "qkv [..,W], out [..,D], dout as out, lse #R*heads -> dqkv as qkv",
                              .cost = cost_attention_grad};

}  // namespace prun::ops
