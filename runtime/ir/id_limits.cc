#include <fmt/format.h>

#include <algorithm>

#include "ir/graph.h"
#include "ir/ops.h"

namespace prun {

std::vector<IdLimit> id_limits(const Graph& graph) {
  std::vector<IdLimit> limits;
  for (const Node& node : graph.nodes) {
    const bool table = node.op == &ops::embedding;
    if (!table && node.op != &ops::cross_entropy) continue;
    const Value& ids = graph.values[node.inputs[table ? 0 : 1]];
    const Value& looked_up = graph.values[node.inputs[table ? 1 : 0]];
    if (ids.kind != ValueKind::input) continue;
    std::optional<int64_t> ignored;
    if (!table && node.inputs.size() > 2) {
      const std::optional<TargetShares>& shares = graph.values[node.inputs[2]].shares;
      if (shares) ignored = shares->ignored;
    }
    const int64_t size = table ? looked_up.type.shape.front() : looked_up.type.shape.back();
    limits.push_back({ids.name, size,
                      table ? fmt::format("the table '{}' has {} rows", looked_up.name, size)
                            : fmt::format("there are {} logits", size),
                      node.site, ignored, ids.count() / std::max<int64_t>(ids.type.shape.front(), 1)});
  }
  return limits;
}

}  // namespace prun
