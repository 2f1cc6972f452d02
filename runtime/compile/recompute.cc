// Activation recomputation: before a unit's backward, what it needs of the unit's forward pass is computed once more,
// so that between the two only the unit's inputs are kept. (Chen et al. 2016, "Training Deep Nets with Sublinear Memory
// Cost".)
#include <algorithm>
#include <set>

#include "compile/step_builder.h"

namespace prun {

// The forward nodes that `wanted` values come from, in their order, as far as `again` lets them be computed once more.
std::vector<const Node*> StepBuilder::forward_of(CallId call, std::set<ValueId> wanted,
                                                 const std::function<bool(const Node&)>& again) const {
  const std::vector<const Node*>& forward = index_.forward(call);
  std::vector<const Node*> nodes;
  for (auto node = forward.rbegin(); node != forward.rend(); ++node) {
    bool any = false;
    for (ValueId output : (*node)->outputs) any = any || wanted.count(output) != 0;
    if (!any || !again(**node)) continue;
    wanted.insert((*node)->inputs.begin(), (*node)->inputs.end());
    nodes.push_back(*node);
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

// All that backward needs; the outputs become new tensors, so that the old ones are dead after forward.
void StepBuilder::recompute(const ScheduleStep& step) {
  std::set<ValueId> wanted;
  for (const Node* node : index_.backward(step.call)) wanted.insert(node->inputs.begin(), node->inputs.end());
  for (auto [own, global] : state_.global_counts) wanted.erase(global);  // small, and not worth another collective
  for (const Node* node : forward_of(step.call, wanted, [](const Node&) { return true; })) lower(*node, step);
}

// Sequence parallelism gathers the tokens of a layer once more for the gradient of its weights, instead of keeping
// them: before the first node that shares an input with that one, the gradient of the layer's input, which hides it.
void StepBuilder::gather_again(const Node& node, const std::vector<const Node*>& nodes, const ScheduleStep& step) {
  const auto marked = [](const Node& one) { return one.attrs.has("again"); };
  for (const Node* reader : nodes) {
    const bool near = std::any_of(reader->inputs.begin(), reader->inputs.end(), [&](ValueId input) {
      return std::find(node.inputs.begin(), node.inputs.end(), input) != node.inputs.end();
    });
    if (!near) continue;
    for (const Node* gather : forward_of(step.call, {reader->inputs.begin(), reader->inputs.end()}, marked))
      if (gathered_again_.emplace(gather, step.microbatch).second) lower(*gather, step);
  }
}

}  // namespace prun
