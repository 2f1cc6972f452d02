// Ops of a generation, which computes the next tokens of a sequence from the previous ones: positions are inputs, and a
// KV cache holds the previous keys and values. compile/decode.cc replaces a model's own ops by these.
//
// Surprising fact: the last tokens of a chunk may be padding: their keys are written, and overwritten before a token
// attends to them.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {

void require_positions(std::string_view op, const TensorType& x, const TensorType& at) {
  require_float(op, "the input", x);
  require_rank(op, "the input", x, 3);
  require_dtype(op, "the position tensor", at, Dtype::i32);
  if (at.shape != Shape{x.shape[0], x.shape[1]})
    throw plan_error(fmt::format("{}: the input is {}, the positions are {}; should be {}, one of each token", op,
                                 shape_text(x.shape), shape_text(at.shape), shape_text({x.shape[0], x.shape[1]})));
}

namespace {

// An optional third input is the cache that the op updates.
Types infer_cached_attention(const Types& inputs, const Attrs& attrs) {
  require_inputs("cached_attention", inputs, 2, 3);
  require_positions("cached_attention", inputs[0], inputs[1]);
  const TensorType& qkv = inputs[0];
  const int64_t heads = attrs.integer("heads", 1), shared = attrs.integer("kv_heads", heads);
  const int64_t context = attrs.integer("context"), all = heads + 2 * shared;
  if (heads < 1 || shared < 1 || heads % shared != 0 || last_dim(qkv) % all != 0)
    throw plan_error(
        fmt::format("cached_attention: {} heads and {} kv_heads in a last dim of {}", heads, shared, last_dim(qkv)));
  if (context < qkv.shape[1])
    throw plan_error(fmt::format("cached_attention: {} tokens, and a cache of {}", qkv.shape[1], context));
  const int64_t size = last_dim(qkv) / all;
  const TensorType cache{qkv.dtype, {qkv.shape[0], context, 2 * shared * size}};
  if (inputs.size() > 2) require_same_shape("cached_attention", "the cache", inputs[2], "what it holds", cache);
  return {{qkv.dtype, {qkv.shape[0], qkv.shape[1], heads * size}}, cache};
}

// Assumes a full cache.
Cost cost_cached_attention(const Types& inputs, const Types& outputs, const Attrs&) {
  const double queries = count(outputs[0]), keys = static_cast<double>(outputs[1].shape[1]);
  return product_cost(4 * queries * keys, inputs, outputs);
}

}  // namespace

const OpDef cached_attention = {.name = "cached_attention",
                                .distribution = Distribution::own,
                                .side_first = 0,  // the last layer of a prompt needs only the cache
                                .side_end = 1,
                                .infer = infer_cached_attention,
                                .cost = cost_cached_attention};
// Feeds the current tokens and their positions; samples the next token from the logits on the host.
const OpDef feed_tokens = {.name = "feed_tokens", .op_class = OpClass::host, .role = OpRole::source, .side_first = 1};
const OpDef sample_token = {
    .name = "sample_token", .op_class = OpClass::host, .role = OpRole::output, .distribution = Distribution::own};

}  // namespace prun::ops
