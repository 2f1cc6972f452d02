// Expert parallelism. Surprising fact: capacities fix the shapes, so that a plain all_to_all of slots suffices; empty
// slots are sent as zeros. Rounds of a dropless mixture send the rows with a token only (ir/ops/expert_rows.cc).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "compile/distributor.h"
#include "ir/ops.h"

namespace prun {
namespace {

// Appends the all-reduces of a value of each microbatch over the axes that split tokens. Returns the last result.
ValueId add_sums(CompileState& state, ValueId value, const Node& reader, std::vector<Node>& nodes) {
  for (const std::string& axis : state.loss_axes) {
    Node reduce{&ops::all_reduce, {value}, {state.graph.values.next()}, {}, reader.call, reader.site};
    reduce.attrs.set("axis", axis);
    reduce.attrs.set("op", std::string("sum"));
    Value sum = state.graph.values[value];
    sum.name += "." + axis;
    state.graph.values.push_back(std::move(sum));
    value = reduce.outputs[0];
    state.kept_results.insert(value);
    nodes.push_back(std::move(reduce));
  }
  return value;
}

// All-reduces the experts' loads in each microbatch, because the balancing loss covers the tokens of all ranks.
void sum_loads(CompileState& state) {
  std::vector<Node> nodes;
  for (Node& node : state.graph.nodes) {
    nodes.push_back(node);
    if (node.op != &ops::route || (node.attrs.number("aux") == 0 && node.attrs.number("z") == 0)) continue;
    const ValueId own = node.outputs[2];
    const int64_t tokens = state.graph.values[node.outputs[0]].type.shape.front();
    nodes.back().attrs.set("tokens", tokens * state.data_ranks);
    nodes.back().attrs.set("scale", 1.0 / static_cast<double>(tokens * state.microbatches()));
    const ValueId global = add_sums(state, own, node, nodes);
    if (global != own) state.global_counts[own] = global;
  }
  state.graph.nodes = std::move(nodes);
}

// All-reduces what a balancing loss, the mean of products of sums over tokens, reads with the attribute `over_tokens`.
// The gradient of such a loss, the same on all data ranks, is averaged over them, hence `gain`. An all_reduce works in
// place, so a value has one, and other readers of the value have a copy.
void sum_over_tokens(CompileState& state) {
  std::vector<Node> nodes;
  std::map<ValueId, ValueId> sums = state.global_counts;
  std::set<ValueId> of_a_rank;  // values that an op reads as a rank has them
  for (const Node& node : state.graph.nodes)
    if (!node.attrs.has("over_tokens")) of_a_rank.insert(node.inputs.begin(), node.inputs.end());
  std::set<ValueId> products, shares;  // shares: divided by a sum over tokens
  double batch_ranks = 1;
  for (const std::string& axis : state.plan.batch_axes) batch_ranks *= state.plan.mesh.size(axis);
  for (Node& node : state.graph.nodes) {
    if (node.op == &ops::mean && (products.contains(node.inputs[0]) || shares.contains(node.inputs[0]))) {
      node.attrs.set("gain", static_cast<double>(state.data_ranks));
      // The script counts the tokens of one rank.
      if (products.contains(node.inputs[0]))
        node.attrs.set("coefficient", node.attrs.number("coefficient", 1) / (batch_ranks * batch_ranks));
    }
    if (node.op == &ops::pointwise && products.contains(node.inputs[0])) shares.insert(node.outputs[0]);
    if (node.attrs.has("over_tokens")) {
      node.attrs.erase("over_tokens");
      if (node.op == &ops::mul) products.insert(node.outputs[0]);
      for (ValueId& input : node.inputs) {
        const auto [known, fresh] = sums.try_emplace(input, input);
        if (fresh && of_a_rank.contains(input) && !state.loss_axes.empty()) {
          nodes.push_back({&ops::copy, {input}, {state.graph.values.next()}, {}, node.call, node.site});
          state.graph.values.push_back(Value(state.graph.values[input]));
          known->second = nodes.back().outputs[0];
        }
        if (fresh) known->second = add_sums(state, known->second, node, nodes);
        input = known->second;
      }
    }
    nodes.push_back(std::move(node));
  }
  state.graph.nodes = std::move(nodes);
}

// Marks the ops of rounds whose slots, or gradients of slots, are sent whole: a rank without a token in a round writes
// its slots, because ranks of experts that have tokens of others multiply all of them.
void mark_sent_slots(CompileState& state) {
  std::map<ValueId, Node*> dispatched;  // by its slots, also after other exchanges
  std::set<ValueId> returned;
  for (Node& node : state.graph.nodes) {
    const bool exchanges = node.op == &ops::all_to_all;
    if (node.op == &ops::combine && node.attrs.has("round") && returned.contains(node.inputs[0]))
      node.attrs.set("whole", int64_t{1});
    if (node.op == &ops::dispatch && node.attrs.has("round")) dispatched[node.outputs[0]] = &node;
    const bool ends = node.op == &ops::expert_linear || node.op == &ops::expert_activation || node.op == &ops::combine;
    if (ends || node.inputs.empty() || node.outputs.empty()) continue;
    const ValueId x = node.inputs[0];
    if (exchanges || returned.contains(x)) returned.insert(node.outputs.begin(), node.outputs.end());
    const auto found = dispatched.find(x);
    if (found == dispatched.end()) continue;
    if (exchanges) found->second->attrs.set("whole", int64_t{1});
    dispatched[node.outputs[0]] = found->second;
  }
}

}  // namespace

void split_experts(CompileState& state) {
  for (const Strategy& strategy : state.plan.strategies) {
    bool places = std::any_of(strategy.units.begin(), strategy.units.end(),
                              [](const StrategyUnit& unit) { return !unit.layers.empty(); });
    if (strategy.splits == Splits::nothing || !places) continue;
    for (const Axis& axis : state.plan.mesh.axes()) {
      const bool own = std::ranges::count(strategy.axes, axis.name) > 0,
                 shared = std::ranges::count(strategy.shared, axis.name) > 0 && state.strategies.splits_data(axis.name);
      if (axis.size > 1 && (own || shared)) Distributor(state, axis.name).run();
    }
  }
  mark_sent_slots(state);
  sum_loads(state);
  sum_over_tokens(state);
}

namespace {

// Marks an op of an exchange as one of the reader's round.
void set_round(Attrs& attrs, const Node& reader) {
  if (reader.attrs.has("round")) attrs.set("round", reader.attrs.integer("round"));
}

// Sends the tokens of all ranks to the rank of their experts (all_to_all).
ValueId to_experts(Distributor& d, ValueId x, const Node& reader) {
  TensorType pieces = d.type(x);  // [E, C, ..] -> [ranks, E / ranks, C, ..] -> [E / ranks, ranks · C, ..]
  pieces.shape[0] /= d.ranks();
  TensorType joined = pieces;
  joined.shape[1] *= d.ranks();
  pieces.shape.insert(pieces.shape.begin(), d.ranks());
  Attrs exchange, join;
  set_round(exchange, reader), set_round(join, reader);
  exchange.set("axis", d.axis());
  join.set("pieces", int64_t{d.ranks()});
  join.set("dim", int64_t{1});
  return d.emit(ops::join_pieces, d.emit(ops::all_to_all, {x}, exchange, {pieces}), join, {joined}, shard_of(0))[0];
}

// Returns the results of this rank's experts to the ranks that own the tokens (all_to_all).
ValueId to_tokens(Distributor& d, ValueId y, const Node& reader) {
  if (d.placement(y) != shard_of(0) || d.splits_weights()) return d.whole(y);
  TensorType pieces = d.type(y), home = pieces;
  pieces.shape[1] /= d.ranks();
  home.shape = {pieces.shape[0] * d.ranks(), pieces.shape[1], pieces.shape[2]};
  pieces.shape.insert(pieces.shape.begin(), d.ranks());
  Attrs exchange, cut;
  set_round(exchange, reader), set_round(cut, reader);
  exchange.set("axis", d.axis());
  cut.set("pieces", int64_t{d.ranks()});
  cut.set("dim", int64_t{1});
  return d.emit(ops::all_to_all, d.emit(ops::cut_pieces, {y}, cut, {pieces}), exchange, {home})[0];
}

// The numbers of filled slots of a dropless mixture, for one axis of experts.
struct Filled {
  ValueId own;   // [E,1]: of the rank's tokens
  ValueId all;   // [ranks,E,1]: of all ranks' tokens
  ValueId here;  // [E / ranks,ranks]: of all ranks' tokens, for the rank's experts
};

// Gathers the numbers of all ranks, once for all rounds of a layer.
Filled filled_of(Distributor& d, ValueId own) {
  TensorType all = d.type(own);
  all.shape.insert(all.shape.begin(), d.ranks());
  const ValueId gathered = d.once(own, [&](ValueId filled) {
    Attrs gather;
    gather.set("axis", d.axis());
    return d.emit(ops::all_gather, {filled}, gather, {all})[0];
  });
  const ValueId here = d.once(gathered, [&](ValueId pieces) {
    TensorType piece = all, joined = all;
    piece.shape[1] /= d.ranks();
    joined.shape = {piece.shape[1], d.ranks()};
    Attrs take, join;
    take.set("axis", d.axis());
    take.set("pieces", int64_t{d.ranks()});
    take.set("dim", int64_t{1});
    join.set("pieces", int64_t{d.ranks()});
    join.set("dim", int64_t{1});
    const ValueId mine = d.emit(ops::take_piece, {pieces}, take, {piece})[0];
    return d.emit(ops::join_pieces, {mine}, join, {joined}, shard_of(0))[0];
  });
  return {own, gathered, here};
}

Attrs rows_attrs(const Attrs& attrs) {
  Attrs round;
  round.set("round", attrs.integer("round"));
  round.set("routed", attrs.number("routed", 1));
  return round;
}

// Exchanges the rows of a round between the ranks of the tokens and, unless `home`, those of the experts.
ValueId exchange_rows(Distributor& d, ValueId x, const Filled& filled, const Attrs& attrs, bool home) {
  const ValueId from = home ? filled.here : filled.own, to = home ? filled.own : filled.here;
  const Shape slotted = d.type(x).shape, &sources = d.type(from).shape, &others = d.type(to).shape;
  const int64_t slots = slotted[1] / sources[1];
  const Dtype dtype = d.type(x).dtype;
  const TensorType packed{dtype, {sources[1], slotted[0], slots, slotted[2]}},
      sent{dtype, {others[1], others[0], slots, slotted[2]}}, result{dtype, {others[0], others[1] * slots, slotted[2]}};
  const ValueId rows = d.emit(ops::pack_rows, {x, from}, attrs, {packed})[0];
  Attrs exchange = attrs;
  exchange.set("axis", d.axis());
  exchange.set("home", int64_t{home ? 1 : 0});
  const ValueId arrived = d.emit(ops::exchange_rows, {rows, filled.all}, exchange, {sent})[0];
  return d.emit(ops::unpack_rows, {arrived, to}, attrs, {result}, home ? Placement{} : shard_of(0))[0];
}

// Returns whether an expert_linear, or an activation after one, is of a dropless mixture whose experts only this axis
// divides. Over two axes, slots are exchanged whole.
bool sends_rows(const Distributor& d, const Node& node) {
  if (!node.attrs.has("round")) return false;
  if (node.op == &ops::expert_linear) return !d.is_split_over_others(node.inputs[1]);
  for (const Node& made : d.whole_nodes())
    if (std::ranges::count(made.outputs, node.inputs[0]) > 0)
      return made.op == &ops::expert_linear && sends_rows(d, made);
  return false;
}

// Whether the op belongs to the exchange of tokens over an axis.
bool is_exchange(const OpDef& op) {
  return &op == &ops::all_to_all || &op == &ops::join_pieces || &op == &ops::cut_pieces || &op == &ops::pack_rows ||
         &op == &ops::exchange_rows || &op == &ops::unpack_rows;
}

// Calls f for each reader of a whole graph's value, through the exchange of tokens over another axis.
template <class F>
void each_reader(const Distributor& d, ValueId value, const F& f) {
  for (const Node& node : d.whole_nodes())
    for (const ValueId input : node.inputs) {
      if (input != value) continue;
      if (is_exchange(*node.op))
        each_reader(d, node.outputs[0], f);
      else
        f(node);
    }
}

// Returns whether only experts read these tokens that are split along this dim of their weights.
bool only_split_experts_read(const Distributor& d, ValueId sent, int dim) {
  bool any = false, all = true;
  each_reader(d, sent, [&](const Node& node) {
    any = true;
    all = all && node.op == &ops::expert_linear && d.split_dim(node.inputs[1]) == dim;
  });
  return any && all;
}

void require_divisible(const Distributor& d, int64_t experts, const Value& weight) {
  if (experts % d.ranks() == 0) return;
  const int64_t all = weight.whole[0], ranks = d.ranks() * (all / experts);  // of two axes if another one came before
  d.fail(fmt::format("the {} experts of '{}' do not divide over the {} ranks of axis '{}'", all, weight.name, ranks,
                     fmt::join(split(weight.split_axis, ','), "' x '")));
}

// Returns the number of slots of an expert that route has numbered for a dispatch: in rounds one for each token.
int64_t numbered_slots(const Distributor& d, const Node& dispatch) {
  return dispatch.attrs.has("round") ? d.type(dispatch.inputs[1]).shape[0] : d.type(dispatch.outputs[0]).shape[1];
}

// Returns the slots of this rank's experts, whose ranks have the same tokens. `run`: slots of one rank's experts, among
// those of the experts that another axis has divided before.
ValueId own_slots(Distributor& d, ValueId slots, int64_t run) {
  return d.once(slots, [&](ValueId whole) {
    Attrs attrs;
    attrs.set("axis", d.axis());
    attrs.set("pieces", int64_t{d.ranks()});
    attrs.set("run", run);
    return d.emit(ops::take_slots, {d.whole(whole)}, attrs, {d.type(whole)})[0];
  });
}

bool is_only_combined(const Distributor& d, ValueId y) {
  bool all = true;
  each_reader(d, y, [&](const Node& node) { all = all && node.op == &ops::combine; });
  return all;
}

}  // namespace

// The ranks' gradients of tokens are partial sums if each rank has a part of every expert. They are added up by token,
// because there are fewer tokens than slots.
void dispatch(Distributor& d, const Node& node) {
  Node copy = node;
  if (d.splits_weights() && only_split_experts_read(d, node.outputs[0], 0)) {
    int64_t experts = 0;
    each_reader(d, node.outputs[0], [&](const Node& reader) {
      require_divisible(d, d.whole_type(reader.outputs[0]).shape[0], d.graph().values[reader.inputs[1]]);
      experts = d.type(reader.inputs[1]).shape[0];
    });
    const Shape& sent = d.type(node.outputs[0]).shape;
    copy.inputs = {d.replicated(node.inputs[0]), own_slots(d, node.inputs[1], experts * numbered_slots(d, node))};
    copy.attrs.set("experts", sent[0] / d.ranks());
    return d.keep(std::move(copy), shard_of(0));
  }
  const bool split = only_split_experts_read(d, node.outputs[0], 2);
  copy.inputs[0] = split ? d.replicated(node.inputs[0]) : d.whole(node.inputs[0]);
  copy.inputs[1] = d.whole(node.inputs[1]);
  d.keep(std::move(copy), {});
  if (split) d.mark_replicated(node.outputs[0]);
}

namespace {

// The exchange over another axis, of the slots of a rank's experts, [experts, slots, ..] or [pieces, experts, ..].
void own_pieces(Distributor& d, const Node& node) {
  const bool in_pieces = node.op == &ops::cut_pieces || (node.op == &ops::all_to_all && !d.has_pieces(node.inputs[0]));
  TensorType type = d.type(node.outputs[0]);
  type.shape[in_pieces ? 1 : 0] /= d.ranks();
  const ValueId out = d.emit(*node.op, node.inputs, node.attrs, {type}, shard_of(in_pieces ? 1 : 0))[0];
  if (in_pieces) d.mark_pieces(out);
  d.define(node.outputs[0], out);
}

}  // namespace

// The exchange of tokens over another axis.
void expert_pieces(Distributor& d, const Node& node) {
  const ValueId x = node.inputs[0];
  if (d.splits_weights() && (d.placement(x) == shard_of(0) || d.has_pieces(x))) return own_pieces(d, node);
  if (!d.is_replicated(x) && !d.is_partial(x)) {
    if (node.op == &ops::join_pieces) return token_pieces(d, node);
    Node copy = node;
    copy.inputs[0] = to_tokens(d, x, node);
    return d.keep(std::move(copy), {});
  }
  const bool partial = d.is_partial(x);
  d.keep(node, {});
  partial ? d.mark_partial(node.outputs[0]) : d.mark_replicated(node.outputs[0]);
}

// Experts are divided among ranks (dim 0 of their weights), or each of them is: the first layers along their outputs,
// the last one along its inputs, like the layers of an MLP.
void expert_linear(Distributor& d, const Node& node) {
  ValueId x = node.inputs[0], w = node.inputs[1];
  const int dim = d.split_dim(w);
  if (dim < 0) return d.keep(node, {});
  const Value& weight = d.graph().values[w];
  if (dim == 0) require_divisible(d, d.whole_type(node.outputs[0]).shape[0], weight);
  Node copy = node;
  if (dim == 0) {
    if (!d.splits_weights()) {
      if (sends_rows(d, node)) {
        const Filled filled = filled_of(d, node.inputs[2]);
        if (d.placement(x) == Placement{})
          copy.inputs[0] =
              d.once(x, [&](ValueId sent) { return exchange_rows(d, sent, filled, rows_attrs(node.attrs), false); });
        copy.inputs[2] = filled.here;
        return d.keep(std::move(copy), shard_of(0));
      }
      for (const size_t i : {0, 2})
        if (d.placement(node.inputs[i]) == Placement{})
          copy.inputs[i] = d.once(node.inputs[i], [&](ValueId sent) { return to_experts(d, sent, node); });
      return d.keep(std::move(copy), shard_of(0));
    }
    if (d.placement(x) != shard_of(0))
      d.fail(
          fmt::format("'{}' holds experts, and the ranks of axis '{}' have the same tokens: place all layers of the "
                      "experts S(0), or none",
                      weight.name, d.axis()));
    copy.inputs[2] = d.piece_of(node.inputs[2], 0);
    return d.keep(std::move(copy), shard_of(0));
  }
  if (!d.splits_weights())
    d.fail(fmt::format("'{}' holds experts: it can be sharded over them, S(0), not S({})", weight.name, dim));
  if (dim == 2) {
    copy.inputs[0] = d.replicated(x);
    return d.keep(std::move(copy), shard_of(2));
  }
  if (d.placement(x) != shard_of(2))
    d.fail(
        fmt::format("'{}' is sharded along its inputs, but what the experts at {} read is not: shard the layer before "
                    "it along its outputs, S(2)",
                    weight.name, node.site.text()));
  const ValueId y = d.emit(ops::expert_linear, {x, w, node.inputs[2]}, node.attrs, {d.type(node.outputs[0])})[0];
  const bool later = is_only_combined(d, node.outputs[0]);
  if (later) d.mark_partial(y);
  d.define(node.outputs[0], later ? y : d.sum(y, false));
}

// Slots remain where they are; the numbers of filled ones are those of the same experts.
void expert_activation(Distributor& d, const Node& node) {
  Node copy = node;
  const Placement slots = d.placement(node.inputs[0]);
  const ValueId filled = node.inputs.back();
  if (slots == shard_of(0) && d.splits_weights())
    copy.inputs.back() = d.piece_of(filled, 0);
  else if (slots == shard_of(0))
    copy.inputs.back() = sends_rows(d, node) ? filled_of(d, filled).here
                                             : d.once(filled, [&](ValueId sent) { return to_experts(d, sent, node); });
  d.keep(std::move(copy), slots);
}

namespace {

// Returns the results of the rank's tokens. Those of a round take the way that its tokens took.
ValueId results_of_experts(Distributor& d, const Node& combine) {
  const ValueId y = combine.inputs[0];
  if (d.placement(y) == shard_of(0) && !d.splits_weights())
    for (const Node& made : d.whole_nodes())
      if (made.op == &ops::expert_linear && made.outputs[0] == y && sends_rows(d, made))
        return exchange_rows(d, y, filled_of(d, made.inputs[2]), rows_attrs(made.attrs), true);
  return to_tokens(d, y, combine);
}

// Returns whether the only reader of a round's result is the combine of the next round, which adds to it.
bool is_only_added_to(const Distributor& d, ValueId result) {
  int readers = 0, rounds = 0;
  for (const Node& node : d.whole_nodes())
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] != result) continue;
      readers++;
      rounds += node.op == &ops::combine && i == 3 ? 1 : 0;
    }
  return readers == 1 && rounds == 1;
}

}  // namespace

// Partial sums are added up by token, after the last round.
void combine(Distributor& d, const Node& node) {
  ValueId y = node.inputs[0];
  Node copy = node;
  if (d.splits_weights() && d.placement(y) == shard_of(0)) {
    copy.inputs[1] = d.once(node.inputs[1], [](ValueId slots) {
      PRUN_CHECK(false, "slots are combined before they are sent");
      return slots;
    });
    copy.inputs[2] = d.replicated(node.inputs[2]);
  } else {
    copy.inputs[0] = results_of_experts(d, node);
    for (const size_t i : {1, 2}) copy.inputs[i] = d.whole(node.inputs[i]);
    if (!d.is_partial(y)) return d.keep(std::move(copy), {});
    copy.inputs[2] = d.replicated(copy.inputs[2]);
  }
  const ValueId sum = d.emit(ops::combine, copy.inputs, copy.attrs, {d.type(node.outputs[0])})[0];
  if (!is_only_added_to(d, node.outputs[0])) return d.define(node.outputs[0], d.sum(sum, d.sequence(node)));
  d.mark_partial(sum);
  d.define(node.outputs[0], sum);
}

}  // namespace prun
