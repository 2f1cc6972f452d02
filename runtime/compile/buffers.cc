// Buffers that the model updates: each microbatch reads the value that the microbatch before it has left. Also the
// nodes of training and of evaluations, where by_phase chooses between two values.
//
// Surprising fact: readers get a copy, because backward, which follows the update, may read the value that forward had.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "compile/compile_state.h"
#include "ir/ops.h"

namespace prun {
namespace {

// Throws plan_error unless each update is the only one of a buffer of its own unit, which is called once.
std::map<ValueId, const Node*> checked_updates(const Graph& graph) {
  std::map<ValueId, const Node*> updates;
  for (const Node& node : graph.nodes) {
    if (node.op != &ops::update) continue;
    const Value& buffer = graph.values[node.inputs[0]];
    if (buffer.kind != ValueKind::parameter || !buffer.buffer)
      throw plan_error(fmt::format("update: '{}' is no buffer", buffer.name), node.site);
    if (!updates.emplace(node.inputs[0], &node).second)
      throw plan_error(fmt::format("update: the buffer '{}' is updated twice in a step", buffer.name), node.site);
  }
  for (const Node& node : graph.nodes)
    for (const ValueId input : node.inputs) {
      const UnitId unit = graph.calls[node.call].unit;
      if (!updates.contains(input) || graph.values[input].unit == unit) continue;
      throw plan_error(
          fmt::format("{} of unit '{}' reads the buffer '{}', which the unit '{}' updates: only the buffer's unit "
                      "reads it",
                      node.op->name, graph.units[unit].name, graph.values[input].name,
                      graph.units[graph.values[input].unit].name),
          node.site);
    }
  for (const auto& [buffer, node] : updates) {
    const UnitId unit = graph.values[buffer].unit;
    if (std::ranges::count(graph.calls, unit, &Call::unit) > 1)
      throw plan_error(fmt::format("the unit '{}' is called again, and updates the buffer '{}': a step updates it once",
                                   graph.units[unit].name, graph.values[buffer].name),
                       node->site);
  }
  return updates;
}

}  // namespace

void separate_buffers(CompileState& state) {
  Graph& graph = state.graph;
  const std::map<ValueId, const Node*> updates = checked_updates(graph);
  if (updates.empty()) return;
  std::map<ValueId, ValueId> copies;
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    if (node.op == &ops::update && state.options.forward) continue;
    for (size_t i = node.op == &ops::update ? 1 : 0; i < node.inputs.size() && !state.options.forward; ++i) {
      ValueId& input = node.inputs[i];
      if (!updates.contains(input)) continue;
      auto [copy, fresh] = copies.try_emplace(input, graph.values.next());
      if (fresh) {
        Value value = graph.values[input];
        value.name += ".before";
        value.kind = ValueKind::activation;
        value.unit = UnitId();
        value.frozen = value.buffer = false;
        graph.values.push_back(std::move(value));
        nodes.push_back({&ops::copy, {input}, {copy->second}, {}, node.call, node.site});
        state.kept_results.insert(copy->second);
      }
      input = copy->second;
    }
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
}

void require_read_buffers(const CompileState& state) {
  if (state.microbatches() == 1) return;
  for (const Node& update : state.graph.nodes) {
    if (update.op != &ops::update) continue;
    const auto reads = [&](const Node& node) { return node.op != &ops::update && node.inputs[0] == update.inputs[0]; };
    if (std::ranges::none_of(state.graph.nodes, reads))
      throw plan_error(fmt::format("the buffer '{}' is updated by each of the {} microbatches, and training does not "
                                   "read it: the last one would win; let its new value depend on the old one",
                                   state.graph.values[update.inputs[0]].name, state.microbatches()),
                       update.site);
  }
}

bool is_updated(const Graph& graph, ValueId buffer) {
  return std::ranges::any_of(graph.nodes,
                             [&](const Node& node) { return node.op == &ops::update && node.inputs[0] == buffer; });
}

bool has_phases(const Graph& graph) {
  return std::ranges::any_of(graph.nodes, [](const Node& node) { return node.op == &ops::by_phase; });
}

}  // namespace prun
