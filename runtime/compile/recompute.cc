// Activation recomputation: before a unit's backward, what it needs of the unit's forward pass is computed once more,
// so that between the two only the unit's inputs are kept. (Chen et al. 2016, "Training Deep Nets with Sublinear Memory
// Cost".)
#include <set>

#include "compile/step_builder.h"

namespace prun {

bool StepBuilder::recomputes(const Turn& turn) const {
  const std::string& unit_class = draft_.graph.units[static_cast<size_t>(unit_of(turn))].unit_class;
  for (const Strategy& strategy : draft_.plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      if (unit.recompute && unit.unit_class == unit_class) return true;
  return false;
}

// The forward nodes that backward depends on, in their order; their outputs become new tensors, so that the old ones
// are dead after forward.
void StepBuilder::recompute(const Turn& turn) {
  const std::vector<const Node*>& forward = forward_[static_cast<size_t>(turn.call)];
  std::set<int> needed;
  for (const Node* node : backward_[static_cast<size_t>(turn.call)])
    needed.insert(node->inputs.begin(), node->inputs.end());
  for (auto [own, global] : draft_.global_counts) needed.erase(global);  // small, and not worth another collective
  std::vector<const Node*> again;
  for (auto node = forward.rbegin(); node != forward.rend(); ++node) {
    bool wanted = false;
    for (int output : (*node)->outputs) wanted = wanted || needed.count(output) != 0;
    if (!wanted) continue;
    needed.insert((*node)->inputs.begin(), (*node)->inputs.end());
    again.push_back(*node);
  }
  for (auto node = again.rbegin(); node != again.rend(); ++node) lower(**node, turn);
}

}  // namespace prun
