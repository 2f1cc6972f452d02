#include <fmt/format.h>

#include <algorithm>

#include "ir/graph.h"
#include "ir/ops.h"

namespace prun {

namespace {

// Returns the value whose elements a chain of views selects, repeats or reorders.
const Value& source_of(const Graph& graph, ValueId id) {
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const bool selects =
        node->op == &ops::reshape || node->op == &ops::permute || node->op == &ops::slice || node->op == &ops::expand;
    if (selects && node->outputs[0] == id) id = node->inputs[0];
  }
  return graph.values[id];
}

}  // namespace

std::vector<IdLimit> id_limits(const Graph& graph) {
  std::vector<IdLimit> limits;
  for (const Node& node : graph.nodes) {
    const bool table = node.op == &ops::embedding, rows = node.op == &ops::gather_rows;
    if (!table && !rows && node.op != &ops::cross_entropy) continue;
    const Value& ids = source_of(graph, node.inputs[table ? 0 : 1]);
    const Value& looked_up = graph.values[node.inputs[table ? 1 : 0]];
    if (ids.kind != ValueKind::input) continue;
    std::optional<int64_t> ignored;
    if (!table && node.inputs.size() > 2) {
      const std::optional<TargetShares>& shares = graph.values[node.inputs[2]].shares;
      if (shares) ignored = shares->ignored;
    }
    const Shape& shape = looked_up.type.shape;
    const size_t dims = graph.values[node.inputs[table ? 0 : 1]].type.shape.size();
    const int64_t size = table ? shape.front() : rows ? shape[dims - 1] : shape.back();
    limits.push_back({ids.name, size,
                      table  ? fmt::format("the table '{}' has {} rows", looked_up.name, size)
                      : rows ? fmt::format("'{}' has {} rows", looked_up.name, size)
                             : fmt::format("there are {} logits", size),
                      node.site, ignored, ids.count() / std::max<int64_t>(ids.type.shape.front(), 1)});
  }
  return limits;
}

}  // namespace prun
