// Distribution rules of the ops, for axes that split weights (tensor parallelism): one rule for each value of
// OpDef::distribution, and the ops' own rules.
#include <fmt/format.h>

#include <algorithm>

#include "compile/distributor.h"
#include "compile/view_dims.h"
#include "ir/ops.h"

namespace prun {
namespace {

Placement last_dim_shard(const Distributor& d, ValueId value) { return shard_of(d.type(value).shape.size() - 1); }

void whole(Distributor& d, const Node& node) {
  Node copy = node;
  for (ValueId& input : copy.inputs)
    if (d.graph().values[input].kind != ValueKind::parameter) input = d.whole(input);
  for (ValueId input : copy.inputs)
    if (d.split_dim(input) >= 0)
      d.fail(fmt::format("{} at {} cannot use '{}', which is sharded over '{}'", node.op->name, node.site.text(),
                         d.graph().values[input].name, d.axis()));
  d.keep(std::move(copy), {});
}

// Element-wise ops: shards remain shards. If the inputs' placements differ, a shard along tokens wins over whole.
void elementwise(Distributor& d, const Node& node) {
  Node copy = node;
  Placement placement;
  bool tokens = false;
  for (ValueId input : copy.inputs) {
    if (d.placement(input).kind == PlacementKind::shard && (placement == Placement{} || d.is_tokens(input)))
      placement = d.placement(input);
    tokens = tokens || d.is_tokens(input);
  }
  bool same = std::all_of(copy.inputs.begin(), copy.inputs.end(),
                          [&](ValueId input) { return d.placement(input) == placement; });
  if (!same) {
    for (ValueId& input : copy.inputs) input = tokens ? d.tokens_of(input) : d.whole(input);
    if (!tokens) placement = {};
  }
  d.keep(std::move(copy), placement);
}

// x·w + b with w split over its outputs (column), its inputs (row), or not.
void linear(Distributor& d, const Node& node) {
  ValueId x = node.inputs[0], w = node.inputs[1];
  int dim = d.split_dim(w);
  const bool column = dim == (node.attrs.integer("transpose") != 0 ? 0 : 1);
  Node copy = node;
  if (dim < 0) {
    if (!d.is_tokens(x)) {
      copy.inputs[0] = d.whole(x);
      return d.keep(std::move(copy), {});
    }
    for (size_t i = 1; i < node.inputs.size(); ++i)
      d.partial_gradient(node.inputs[i]);  // same weights, different tokens
    return d.keep(std::move(copy), d.placement(x));
  }
  if (column) {
    copy.inputs[0] = d.replicated(x);
    copy.attrs.set("dx_first", int64_t{1});  // so that the reduction of dx overlaps with dw
    if (node.attrs.has("columns")) copy.attrs.set("columns", node.attrs.number("columns") / d.ranks());
    return d.keep(std::move(copy), last_dim_shard(d, node.outputs[0]));
  }
  if (d.placement(x) != last_dim_shard(d, x))
    d.fail(
        fmt::format("'{}' is sharded along its inputs, but what the linear at {} reads is not: shard the layer before "
                    "it along its outputs, S(1)",
                    d.graph().values[w].name, node.site.text()));
  bool tokens = d.sequence(node);
  ValueId y = d.sum(d.emit(ops::linear, {x, w}, node.attrs, {d.type(node.outputs[0])})[0], tokens);
  if (node.inputs.size() > 2) {
    if (tokens) d.partial_gradient(node.inputs[2]);
    y = d.emit(ops::bias, {y, node.inputs[2]}, {}, {d.type(y)}, d.placement(y))[0];
  }
  d.define(node.outputs[0], y);
}

void require_heads_divide(const Distributor& d, const Node& attention) {
  for (const auto& [name, words] : {std::pair("heads", "heads"), std::pair("kv_heads", "key and value heads")})
    if (attention.attrs.has(name) && attention.attrs.integer(name) % d.ranks() != 0)
      d.fail(fmt::format("{} {} of the attention at {} do not divide over the {} ranks of axis '{}'",
                         attention.attrs.integer(name), words, attention.site.text(), d.ranks(), d.axis()));
}

// Splits the heads in the way in which the columns of qkv are split.
void attention(Distributor& d, const Node& node) {
  ValueId qkv = node.inputs[0];
  if (d.placement(qkv) != last_dim_shard(d, qkv)) return whole(d, node);
  require_heads_divide(d, node);
  Node copy = node;
  for (const char* name : {"heads", "kv_heads"})
    if (node.attrs.has(name)) copy.attrs.set(name, node.attrs.integer(name) / d.ranks());
  copy.attrs.set("of_heads", node.attrs.integer("heads"));
  d.keep(std::move(copy), last_dim_shard(d, node.outputs[0]));
}

// Splits the heads of queries. Keys and values are split alike if their heads divide over the ranks; otherwise each
// rank has all of them, and its gradients are partial sums.
void attend(Distributor& d, const Node& node) {
  const ValueId q = node.inputs[0];
  if (d.placement(q) != last_dim_shard(d, q)) return whole(d, node);
  const int64_t heads = node.attrs.integer("heads", 1), shared = node.attrs.integer("kv_heads", heads);
  if (heads % d.ranks() != 0)
    d.fail(fmt::format("{} heads of the attention at {} do not divide over the {} ranks of axis '{}'", heads,
                       node.site.text(), d.ranks(), d.axis()));
  Node copy = node;
  copy.attrs.set("heads", heads / d.ranks());
  copy.attrs.set("of_heads", heads);
  const auto is_split = [&](ValueId value) { return d.placement(value) == last_dim_shard(d, value); };
  if (shared % d.ranks() == 0 && is_split(node.inputs[1]) && is_split(node.inputs[2])) {
    copy.attrs.set("kv_heads", shared / d.ranks());
  } else {
    for (const size_t i : {1, 2}) copy.inputs[i] = d.replicated(node.inputs[i]);
    copy.attrs.set("kv_heads", shared);
    copy.attrs.set("kv_axis", d.axis());
  }
  for (size_t i = 3; i < node.inputs.size(); ++i) copy.inputs[i] = d.whole(node.inputs[i]);
  d.keep(std::move(copy), last_dim_shard(d, node.outputs[0]));
}

void rotary(Distributor& d, const Node& node) {
  ValueId x = node.inputs[0];
  if (d.placement(x) != last_dim_shard(d, x)) return whole(d, node);
  Node copy = node;
  const int64_t heads = node.attrs.integer("heads");
  if (heads % d.ranks() != 0) {
    // The attention that reads these heads has the user's head counts; a rotary has only their sum.
    for (const Node& reader : d.whole_nodes())
      if (distribute_rule(*reader.op) == attention && reader.inputs[0] == node.outputs[0])
        require_heads_divide(d, reader);
    for (const Node& reader : d.whole_nodes())
      if (reader.op == &ops::attend && reader.inputs[0] != node.outputs[0]) return whole(d, node);
    d.fail(fmt::format("{} heads of the rotary at {} do not divide over the {} ranks of axis '{}'", heads,
                       node.site.text(), d.ranks(), d.axis()));
  }
  copy.attrs.set("heads", heads / d.ranks());
  copy.attrs.set("of_heads", heads);
  d.keep(std::move(copy), last_dim_shard(d, x));
}

// Norms process each row independently; on a shard of the rows (tokens, or heads in [B,T,heads,size]), parameter
// gradients are partial sums.
void norm(Distributor& d, const Node& node) {
  const Placement rows = d.placement(node.inputs[0]);
  if (rows.kind != PlacementKind::shard || rows == last_dim_shard(d, node.inputs[0])) return whole(d, node);
  for (size_t i = 1; i < node.inputs.size(); ++i) d.partial_gradient(node.inputs[i]);
  d.keep(node, d.placement(node.inputs[0]));
}

// The rank's tokens are a contiguous part of the tokens that the previous axes assign to it.
void count_tokens(const Distributor& d, Attrs& attrs) {
  const std::string before = attrs.text("tokens_axis");
  attrs.set("tokens_axis", before.empty() ? d.axis() : before + "," + d.axis());
  if (before.empty()) attrs.set("chunks", int64_t{1});
}

void dropout(Distributor& d, const Node& node) {
  Placement placement = d.placement(node.inputs[0]);
  if (placement.kind != PlacementKind::shard) return whole(d, node);
  Node copy = node;
  const bool tokens = d.is_tokens(node.inputs[0]);
  if (tokens) {
    count_tokens(d, copy.attrs);
  } else {
    copy.attrs.set("split_axis", d.axis());
    copy.attrs.set("width", d.whole_type(node.outputs[0]).shape.back());
  }
  d.keep(std::move(copy), placement);
}

// A table that is split along its rows yields zeros for missing rows, so that the results are reduced over ranks.
// Positions are added after the reduction.
void embedding(Distributor& d, const Node& node) {
  ValueId table = node.inputs[1];
  bool split = d.split_dim(table) >= 0, tokens = d.sequence(node);
  if (d.split_dim(table) > 0)
    d.fail(fmt::format("'{}' is an embedding: it can be sharded along its rows, S(0), not S({})",
                       d.graph().values[table].name, d.split_dim(table)));
  if (!split && !tokens) return whole(d, node);
  Attrs attrs = node.attrs;
  if (split) attrs.set("axis", d.axis());
  ValueId rows = d.emit(ops::embedding, {node.inputs[0], table}, attrs, {d.type(node.outputs[0])})[0];
  rows = split ? d.sum(rows, tokens) : d.tokens_of(rows);
  if (node.inputs.size() > 2) {
    Attrs places;
    if (tokens) {
      count_tokens(d, places);
      d.partial_gradient(node.inputs[2]);
    }
    rows = d.emit(ops::positions, {rows, node.inputs[2]}, places, {d.type(rows)}, d.placement(rows))[0];
  }
  d.define(node.outputs[0], rows);
}

// Adds the positions of a rank's tokens; context parallelism has separated this op from the embedding.
void positions(Distributor& d, const Node& node) {
  if (!d.is_tokens(node.inputs[0])) return whole(d, node);
  Node copy = node;
  count_tokens(d, copy.attrs);
  d.partial_gradient(node.inputs[1]);
  d.keep(std::move(copy), d.placement(node.inputs[0]));
}

// If logits are split along the vocabulary, all-reduces the maximum, the sum of exponentials and the target's logit
// (Shoeybi et al. 2019, "Megatron-LM").
void cross_entropy(Distributor& d, const Node& node) {
  ValueId logits = node.inputs[0], targets = node.inputs[1];
  if (d.placement(logits) != last_dim_shard(d, logits)) return whole(d, node);
  Attrs attrs, reduce;
  attrs.set("vocab", node.attrs.integer("vocab", d.whole_type(logits).shape.back()));
  attrs.set("axis", d.axis());
  if (node.attrs.has("label_smoothing")) attrs.set("label_smoothing", node.attrs.number("label_smoothing"));
  reduce.set("axis", d.axis());
  TensorType rows{d.type(logits).dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32, {element_count(d.type(targets).shape)}},
      both = rows;
  both.shape.insert(both.shape.begin(), 2);
  reduce.set("op", std::string("max"));
  ValueId m = d.emit(ops::all_reduce, d.emit(ops::cross_entropy_max, {logits}, attrs, {rows}), reduce, {rows})[0];
  reduce.set("op", std::string("sum"));
  ValueId sums =
      d.emit(ops::all_reduce, d.emit(ops::cross_entropy_sums, {logits, targets, m}, attrs, {both}), reduce, {both})[0];
  if (node.attrs.has("coefficient")) attrs.set("coefficient", node.attrs.number("coefficient"));
  std::vector<ValueId> finished = {sums, m, logits, targets};
  if (node.inputs.size() > 2) finished.push_back(node.inputs[2]);
  std::vector<ValueId> loss =
      d.emit(ops::cross_entropy_finish, finished, attrs, {d.type(node.outputs[0]), d.type(node.outputs[1])});
  d.define(node.outputs[0], loss[0]);
  d.define(node.outputs[1], loss[1]);
}

// Σ w² of a parameter that is split over the ranks is the sum of theirs.
void squares(Distributor& d, const Node& node) {
  const ValueId w = node.inputs[0];
  if (d.split_dim(w) < 0) return d.keep(node, {});
  if (!d.splits_weights())
    d.fail(
        fmt::format("the L2 loss at {} reads '{}', which is split over '{}' like the samples: leave it out of the "
                    "pattern",
                    node.site.text(), d.graph().values[w].name, d.axis()));
  d.define(node.outputs[0], d.sum(d.emit(ops::squares, {w}, node.attrs, {d.type(node.outputs[0])})[0], false));
}

// Gathers all columns of the logits on every rank, including the last rank's padding.
void sample_token(Distributor& d, const Node& node) {
  const ValueId logits = node.inputs[0];
  Node copy = node;
  if (d.placement(logits) == last_dim_shard(d, logits)) {
    Attrs gather, join;
    gather.set("axis", d.axis());
    join.set("pieces", int64_t{d.ranks()});
    join.set("dim", static_cast<int64_t>(d.type(logits).shape.size()) - 1);
    TensorType pieces = d.type(logits), joined = pieces;
    pieces.shape.insert(pieces.shape.begin(), d.ranks());
    joined.shape.back() *= d.ranks();
    const int64_t vocab = node.attrs.integer("vocab", d.whole_type(logits).shape.back());
    if (joined.shape.back() != vocab) gather.set("padded", vocab), copy.attrs.set("vocab", vocab);
    copy.inputs[0] = d.emit(ops::join_pieces, d.emit(ops::all_gather, {logits}, gather, {pieces}), join, {joined})[0];
  }
  d.keep(std::move(copy), {});
}

// A row has all columns, like the logits of a token, and all tokens.
void write_rows(Distributor& d, const Node& node) {
  const ValueId rows = node.inputs[0];
  if (d.placement(rows) == last_dim_shard(d, rows)) return sample_token(d, node);
  Node copy = node;
  copy.inputs[0] = d.whole(rows);
  d.keep(std::move(copy), {});
}

}  // namespace

// Collectives that context parallelism has inserted keep a rank's columns.
void token_pieces(Distributor& d, const Node& node) {
  const ValueId x = node.inputs[0];
  if (d.placement(x) != last_dim_shard(d, x)) return whole(d, node);
  TensorType type = d.whole_type(node.outputs[0]);
  type.shape.back() = d.type(x).shape.back();
  const Placement columns = shard_of(type.shape.size() - 1);
  d.define(node.outputs[0], d.emit(*node.op, {x}, node.attrs, {type}, columns)[0]);
}

namespace {

struct OwnRule {
  const OpDef* op;
  DistributeRule rule;
};
constexpr OwnRule kOwnRules[] = {
    {&ops::linear, linear},
    {&ops::attention, attention},
    {&ops::ring_attention, attention},
    {&ops::attend, attend},
    {&ops::rotary, rotary},
    {&ops::rotary_at, rotary},
    {&ops::cached_attention, attention},
    {&ops::sample_token, sample_token},
    {&ops::write_rows, write_rows},
    {&ops::dropout, dropout},
    {&ops::embedding, embedding},
    {&ops::dispatch, dispatch},
    {&ops::combine, combine},
    {&ops::positions, positions},
    {&ops::reshape, view},
    {&ops::permute, view},
    {&ops::slice, view},
    {&ops::pad, view},
    {&ops::concat, view},
    {&ops::expand, view},
    {&ops::gather_rows, view},
    {&ops::pointwise, pointwise},
    {&ops::reduce_dims, reduction},
    {&ops::softmax, reduction},
    {&ops::matmul, reduction},
    {&ops::cumsum, reduction},
    {&ops::expert_linear, expert_linear},
    {&ops::expert_activation, expert_activation},
    {&ops::cross_entropy, cross_entropy},
    {&ops::squares, squares},
};

}  // namespace

DistributeRule distribute_rule(const OpDef& op) {
  for (const OpDef* exchange :
       {&ops::all_to_all, &ops::join_pieces, &ops::cut_pieces, &ops::pack_rows, &ops::exchange_rows, &ops::unpack_rows})
    if (&op == exchange) return expert_pieces;
  if (&op == &ops::all_gather) return token_pieces;
  switch (op.distribution) {
    case Distribution::whole:
      return whole;
    case Distribution::elementwise:
      return elementwise;
    case Distribution::by_rows:
      return norm;
    case Distribution::own:
      for (const OwnRule& own : kOwnRules)
        if (own.op == &op) return own.rule;
      [[fallthrough]];
    case Distribution::none:
      break;
  }
  PRUN_CHECK(false, fmt::format("{} has no rule of distribution", op.name));
}

// Splits tokens first, then experts, then weights, because each axis handles the ops that the previous one inserted. An
// axis with one rank splits nothing.
void distribute(CompileState& state) {
  follow_samples(state);
  check_combined_dims(state);
  split_tokens(state);
  split_experts(state);
  share_statistics(state);
  for (const Strategy& strategy : state.plan.strategies)
    for (const std::string& axis : strategy.axes)
      if (strategy.splits == Splits::nothing && state.plan.mesh.size(axis) > 1 &&
          !(state.plan.pipeline && axis == state.plan.pipeline->axis))
        Distributor(state, axis).run();
}

}  // namespace prun
