// Backward in two halves: a node belongs to the half of the weights when nothing but gradients of parameters comes of
// it.
#include "compile/step_builder.h"

namespace prun {

void StepBuilder::split_backward() {
  const std::vector<Node>& nodes = state_.backward;
  for_weights_.assign(nodes.size(), false);
  std::vector<bool> urgent(state_.graph.values.size(), false);  // somebody's input half waits for it
  std::vector<int> made_by(state_.graph.values.size(), -1);     // call
  for (const Node& node : nodes)
    for (ValueId output : node.outputs) made_by[output] = node.call;
  for (size_t n = nodes.size(); n-- > 0;) {
    bool input = false;
    for (ValueId output : nodes[n].outputs) input = input || urgent[output];
    for_weights_[n] = !input;
    for (ValueId value : nodes[n].inputs)
      if (input || made_by[value] != nodes[n].call) urgent[value] = true;
  }
}

}  // namespace prun
