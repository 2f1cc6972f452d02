// attention over heads: softmax(q·kᵀ/√h)·v with h = width/heads. Only the log-sum-exp of each row is kept; the
// derivative recomputes the probabilities from it (Dao et al., FlashAttention, 2022).
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_attention(const Types& inputs, const Attrs& attrs) {
  require_inputs("attention", inputs, 1, 1);
  const TensorType& qkv = inputs[0];
  require_float("attention", "qkv", qkv);
  require_rank("attention", "qkv", qkv, 3);
  if (last_dim(qkv) % 3 != 0)
    throw plan_error(fmt::format("attention: qkv's last dim is {}, should be three times the width", last_dim(qkv)));
  int64_t width = last_dim(qkv) / 3, heads = attrs.integer("heads", 1);
  if (heads < 1) throw plan_error(fmt::format("attention: {} heads; at least 1 is needed", heads));
  if (width % heads != 0)
    throw plan_error(fmt::format("attention: width {} is not divisible by {} heads", width, heads));
  int64_t batch = qkv.shape[0], length = qkv.shape[1];
  return {{qkv.dtype, {batch, length, width}}, {wide(qkv.dtype), {batch, heads, length}}};
}

void derive_attention(GradientBuilder& builder, const NodeView& node) {
  int qkv = node.inputs[0], out = node.outputs[0];
  if (!builder.wants(qkv)) return;
  std::vector<int> grad = builder.emit("attention_grad", {qkv, out, builder.gradient(out), node.outputs[1]},
                                       {builder.type(qkv)}, node.attrs);
  builder.contribute(qkv, grad[0]);
}

// One product of [T,h]·[h,T] for all heads, halved when the upper triangle is masked.
double product_flops(const TensorType& qkv, const Attrs& attrs) {
  double batch = static_cast<double>(qkv.shape[0]), length = static_cast<double>(qkv.shape[1]);
  double width = static_cast<double>(last_dim(qkv) / 3);
  return 2 * batch * length * length * width * (attrs.integer("causal") ? 0.5 : 1);
}
Cost cost_attention(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return cost_of(2 * product_flops(inputs[0], attrs), inputs, outputs);
}
Cost cost_attention_grad(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return cost_of(5 * product_flops(inputs[0], attrs), inputs, outputs);
}

const OpDef kOps[] = {
    {.name = "attention", .infer = infer_attention, .derive = derive_attention, .cost = cost_attention},
    {.name = "attention_grad", .cost = cost_attention_grad},
};

}  // namespace

std::span<const OpDef> attention() { return kOps; }

}  // namespace prun::ops
