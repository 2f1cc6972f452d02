// Splits backward into two halves for zero-bubble schedules: a node belongs to the weight half (dw) if only gradients
// of parameters depend on it, and neither it nor they read parameters.
#include <algorithm>

#include "compile/step_index.h"

namespace prun {

std::vector<bool> split_backward(const Graph& graph, const std::vector<Node>& backward) {
  std::vector<bool> for_weights(backward.size(), false);
  Table<ValueId, bool> urgent(graph.values.size(), false);  // the input half of some call depends on it
  Table<ValueId, CallId> made_by(graph.values.size());
  for (const Node& node : backward)
    for (ValueId output : node.outputs) made_by[output] = node.call;
  for (size_t n = backward.size(); n-- > 0;) {
    // Strategies free parameters after the input half, so that readers of parameters belong to it.
    bool input = std::any_of(backward[n].inputs.begin(), backward[n].inputs.end(),
                             [&](ValueId value) { return graph.values[value].kind == ValueKind::parameter; });
    for (ValueId output : backward[n].outputs) input = input || urgent[output];
    for_weights[n] = !input;
    for (ValueId value : backward[n].inputs)
      if (input || made_by[value] != backward[n].call) urgent[value] = true;
  }
  return for_weights;
}

}  // namespace prun
