// Attention with separate tensors of queries, keys and values: cross-attention, masks, documents, windows, heads of v
// of another size (DeepSeek-AI, "DeepSeek-V2", 2024), and scores that tanh limits (Gemma 2, 2024). A fused qkv without
// these is the op attention. Only the log-sum-exp of each row is retained, as there.
//
// Query t attends to the keys [first, end) in which all rules agree: causal, window, and the row of `spans` of its
// token. A mask then removes the keys where it is 0. A query without keys has the result 0.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

bool has_spans(const Attrs& attrs) { return attrs.integer("spans") != 0; }
bool has_mask(const Attrs& attrs) { return attrs.integer("masked") != 0; }

// Returns the elements of a head of `columns`.
int64_t head_size(std::string_view what, int64_t columns, int64_t heads) {
  if (columns % heads != 0)
    throw plan_error(
        fmt::format("attention: {} has {} columns, which do not divide into {} heads", what, columns, heads));
  return columns / heads;
}

void require_heads(const TensorType& q, const TensorType& k, const Attrs& attrs) {
  const int64_t heads = attrs.integer("heads", 1), shared = kv_heads(attrs);
  if (heads < 1 || shared < 1)
    throw plan_error(fmt::format("attention: {} heads and {} kv_heads; at least 1 is needed", heads, shared));
  const int64_t all = attrs.integer("of_heads", heads);
  if (all % shared != 0)
    throw plan_error(fmt::format("attention: {} heads cannot share {} kv_heads evenly", all, shared));
  const int64_t size = head_size("q", last_dim(q), heads), other = head_size("k", last_dim(k), shared);
  if (size != other)
    throw plan_error(
        fmt::format("attention: a head of q has {} elements ({} columns, {} heads), one of k {} ({} columns, "
                    "{} heads); they should be equal",
                    size, last_dim(q), heads, other, last_dim(k), shared));
}

// A mask is [B,S], [B,1,S] or [B,T,S].
void require_mask(const TensorType& mask, int64_t batch, int64_t queries, int64_t keys) {
  if (mask.dtype != Dtype::i32) require_float("attention", "the mask", mask);
  const Shape& shape = mask.shape;
  const bool fits = (shape.size() == 2 || (shape.size() == 3 && (shape[1] == 1 || shape[1] == queries))) &&
                    shape.front() == batch && shape.back() == keys;
  if (!fits)
    throw plan_error(
        fmt::format("attention: the mask is {}; with {} samples, {} queries and {} keys it should be [{}, "
                    "{}] or [{}, {}, {}]",
                    shape_text(shape), batch, queries, keys, batch, keys, batch, queries, keys));
}

void require_numbers(const Attrs& attrs) {
  if (!(attrs.number("scale", 1) > 0))
    throw plan_error(fmt::format("attention: scale is {}, should be above 0", attrs.number("scale")));
  if (attrs.has("softcap") && !(attrs.number("softcap") > 0))
    throw plan_error(fmt::format("attention: softcap is {}, should be above 0", attrs.number("softcap")));
  if (attrs.has("window") && attrs.integer("window") < 1)
    throw plan_error(fmt::format("attention: window is {}, should be at least 1", attrs.integer("window")));
}

Types infer_attend(const Types& inputs, const Attrs& attrs) {
  const size_t expected = 3 + (has_spans(attrs) ? 1 : 0) + (has_mask(attrs) ? 1 : 0);
  require_inputs("attention", inputs, expected, expected);
  const TensorType &q = inputs[0], &k = inputs[1], &v = inputs[2];
  require_float("attention", "q", q);
  for (const auto& [what, type] : {std::pair{"k", &k}, {"v", &v}}) {
    require_same_dtype("attention", "q", q, what, *type);
    require_rank("attention", what, *type, 3);
  }
  require_rank("attention", "q", q, 3);
  const int64_t batch = q.shape[0], queries = q.shape[1], keys = k.shape[1];
  if (k.shape[0] != batch || v.shape[0] != batch || v.shape[1] != keys)
    throw plan_error(
        fmt::format("attention: q is {}, k {}, v {}; they should have the same samples, and k and v the same "
                    "tokens",
                    shape_text(q.shape), shape_text(k.shape), shape_text(v.shape)));
  require_heads(q, k, attrs);
  require_numbers(attrs);
  size_t next = 3;
  if (has_spans(attrs)) {
    const TensorType& spans = inputs[next++];
    require_dtype("attention", "documents", spans, Dtype::i32);
    if (spans.shape != Shape{batch, queries, 2})
      throw plan_error(
          fmt::format("attention: documents is {}, should be [{}, {}, 2]: the first key of each query, and the "
                      "one after its last",
                      shape_text(spans.shape), batch, queries));
  }
  if (has_mask(attrs)) require_mask(inputs[next], batch, queries, keys);
  const int64_t heads = attrs.integer("heads", 1);
  return {{q.dtype, {batch, queries, heads * head_size("v", last_dim(v), kv_heads(attrs))}},
          {wide(q.dtype), {batch, heads, queries}}};
}

void derive_attend(GradientBuilder& builder, const NodeView& node) {
  const std::vector<ValueId>& in = node.inputs;
  if (has_mask(node.attrs) && builder.wants(in.back()))
    throw plan_error(
        "attention: the mask is computed from parameters and has no gradient; add a bias to the scores "
        "instead (nn.attention's `bias`)");
  if (!builder.wants(in[0]) && !builder.wants(in[1]) && !builder.wants(in[2])) return;
  std::vector<ValueId> reads = {in[0],          in[1], in[2], node.outputs[0], builder.gradient(node.outputs[0]),
                                node.outputs[1]};
  reads.insert(reads.end(), in.begin() + 3, in.end());
  const std::vector<ValueId> grads = builder.emit(
      attend_grad, std::move(reads), {builder.type(in[0]), builder.type(in[1]), builder.type(in[2])}, node.attrs);
  for (size_t i = 0; i < 3; ++i)
    if (builder.wants(in[i])) builder.contribute(in[i], grads[i]);
}

// Returns the FLOPs of one GEMM of all queries with the keys that they see, by q's size of a head or by v's.
double product_flops(const Types& inputs, const Attrs& attrs, int64_t columns) {
  const double batch = static_cast<double>(inputs[0].shape[0]), queries = static_cast<double>(inputs[0].shape[1]);
  double seen = static_cast<double>(inputs[1].shape[1]) * attrs.number("part_of_pairs", 1);
  const double window = static_cast<double>(attrs.integer("window"));
  if (attrs.integer("causal") != 0) seen /= 2;
  if (window > 0) seen = std::min(seen, attrs.integer("causal") != 0 ? window : 2 * window);
  return 2 * batch * queries * seen * static_cast<double>(columns);
}
// Scores and results; the derivative has two GEMMs by q's size besides the recomputed scores, and two by v's.
Cost cost_attend(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  const double by_q = product_flops(inputs, attrs, last_dim(inputs[0]));
  const double by_v = outputs.empty() ? by_q : product_flops(inputs, attrs, last_dim(outputs[0]));
  return product_cost(by_q + by_v, inputs, outputs);
}
Cost cost_attend_grad(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  const double by_q = product_flops(inputs, attrs, last_dim(inputs[0]));
  const double by_v = product_flops(inputs, attrs, last_dim(inputs[3]));
  Cost cost = product_cost(3 * by_q + 2 * by_v, inputs, outputs);
  cost.model = 2 * by_q + 2 * by_v;
  return cost;
}

}  // namespace

const OpDef attend = {.name = "attend",
                      .distribution = Distribution::own,
                      .side_first = 1,
                      .infer = infer_attend,
                      .derive = derive_attend,
                      .cost = cost_attend};
const OpDef attend_grad = {
    .name = "attend_grad",
    .role = OpRole::derivative,
    .shapes =
        "q [B,T,W], k [B,S,C], v [B,S,X], out [B,T,D], dout as out, lse #B*T*heads, ... -> dq as "
        "q, dk as k, dv as v; W*kv_heads = C*heads, X*heads = D*kv_heads",
    .cost = cost_attend_grad};

}  // namespace prun::ops
