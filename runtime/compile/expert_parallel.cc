// Expert parallelism. Surprising fact: capacities fix the shapes, so that a plain all_to_all of slots suffices; empty
// slots are sent as zeros.
#include <fmt/format.h>

#include <algorithm>
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
    if (node.op != &ops::route || node.attrs.number("aux") == 0) continue;
    const ValueId own = node.outputs[2];
    const int64_t tokens = state.graph.values[node.outputs[0]].type.shape.front();
    nodes.back().attrs.set("tokens", tokens * state.data_ranks);
    nodes.back().attrs.set("scale", 1.0 / static_cast<double>(tokens * state.microbatches()));
    const ValueId global = add_sums(state, own, node, nodes);
    if (global != own) state.global_counts[own] = global;
  }
  state.graph.nodes = std::move(nodes);
}

// All-reduces the operands of a product of sums over tokens (attribute `over_tokens`), which the balancing loss is the
// mean of. The gradient of such a loss, the same on all data ranks, is averaged over them, hence `gain`.
void sum_over_tokens(CompileState& state) {
  std::vector<Node> nodes;
  std::set<ValueId> products;
  double batch_ranks = 1;
  for (const std::string& axis : state.plan.batch_axes) batch_ranks *= state.plan.mesh.size(axis);
  for (Node& node : state.graph.nodes) {
    if (node.op == &ops::mean && products.contains(node.inputs[0])) {
      node.attrs.set("gain", static_cast<double>(state.data_ranks));
      // The script counts the tokens of one rank.
      node.attrs.set("coefficient", node.attrs.number("coefficient", 1) / (batch_ranks * batch_ranks));
    }
    if (node.op == &ops::mul && node.attrs.has("over_tokens")) {
      node.attrs.erase("over_tokens");
      products.insert(node.outputs[0]);
      for (ValueId& input : node.inputs) input = add_sums(state, input, node, nodes);
    }
    nodes.push_back(std::move(node));
  }
  state.graph.nodes = std::move(nodes);
}

}  // namespace

void split_experts(CompileState& state) {
  for (const Strategy& strategy : state.plan.strategies) {
    bool places = std::any_of(strategy.units.begin(), strategy.units.end(),
                              [](const StrategyUnit& unit) { return !unit.layers.empty(); });
    if (strategy.splits == Splits::nothing || !places) continue;
    for (const std::string& axis : strategy.axes)
      if (state.plan.mesh.size(axis) > 1) Distributor(state, axis).run();
  }
  sum_loads(state);
  sum_over_tokens(state);
}

// Dispatches the tokens of all ranks to the rank of their experts (all_to_all).
void expert_linear(Distributor& d, const Node& node) {
  ValueId x = node.inputs[0], w = node.inputs[1];
  if (d.split_dim(w) < 0) return d.keep(node, {});
  const Value& weight = d.graph().values[w];
  if (d.split_dim(w) != 0 || weight.whole[0] % d.ranks() != 0)
    d.fail(d.split_dim(w) != 0 ? fmt::format("'{}' holds experts: it can be sharded over them, S(0), not S({})",
                                             weight.name, d.split_dim(w))
                               : fmt::format("the {} experts of '{}' do not divide over the {} ranks of axis '{}'",
                                             weight.whole[0], weight.name, d.ranks(), d.axis()));
  Node copy = node;
  if (d.placement(x) == Placement{}) {
    TensorType pieces = d.type(x),
               joined = pieces;  // [E, C, K] -> [ranks, E / ranks, C, K] -> [E / ranks, ranks · C, K]
    pieces.shape[0] /= d.ranks();
    joined.shape = {pieces.shape[0], pieces.shape[1] * d.ranks(), pieces.shape[2]};
    pieces.shape.insert(pieces.shape.begin(), d.ranks());
    Attrs exchange, join;
    exchange.set("axis", d.axis());
    join.set("pieces", int64_t{d.ranks()});
    join.set("dim", int64_t{1});
    copy.inputs[0] =
        d.emit(ops::join_pieces, d.emit(ops::all_to_all, {x}, exchange, {pieces}), join, {joined}, shard_of(0))[0];
  }
  d.keep(std::move(copy), shard_of(0));
}

// Returns the results to the ranks that own the tokens (all_to_all).
void combine(Distributor& d, const Node& node) {
  ValueId y = node.inputs[0];
  Node copy = node;
  if (d.placement(y) == shard_of(0)) {
    TensorType pieces = d.type(y), home = pieces;
    pieces.shape[1] /= d.ranks();
    home.shape = {pieces.shape[0] * d.ranks(), pieces.shape[1], pieces.shape[2]};
    pieces.shape.insert(pieces.shape.begin(), d.ranks());
    Attrs exchange, cut;
    exchange.set("axis", d.axis());
    cut.set("pieces", int64_t{d.ranks()});
    cut.set("dim", int64_t{1});
    copy.inputs[0] = d.emit(ops::all_to_all, d.emit(ops::cut_pieces, {y}, cut, {pieces}), exchange, {home})[0];
  }
  d.keep(std::move(copy), {});
}

}  // namespace prun
