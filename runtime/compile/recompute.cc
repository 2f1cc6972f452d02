// Activation recomputation: before a unit's backward, the forward nodes that it needs run again, so that only the
// unit's inputs are retained in between. (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".)
#include <algorithm>

#include "compile/step_builder.h"

namespace prun {

// Recomputed outputs are new tensors, so that the old ones are dead after forward.
void StepBuilder::recompute(const ScheduleStep& step, std::vector<Piece>& pieces) {
  const std::vector<const Node*> needed = index_.recomputed(step.call);
  for (const Node* node : index_.run_again(step)) {
    if (std::find(needed.begin(), needed.end(), node) != needed.end()) {
      add_node(*node, step, pieces);
      continue;
    }
    pieces.push_back({[this, node, step] {
      Node unused = *node;
      unused.attrs.set("unused", int64_t{1});
      lower(unused, step);
    }});
  }
}

// Sequence parallelism gathers the tokens of a layer again for dw instead of retaining them. The gather precedes the
// first node that shares an input with dw: this is dx, which hides it.
void StepBuilder::gather_again(const Node& node, const std::vector<const Node*>& nodes, const ScheduleStep& step) {
  const auto [gathers, fresh] = gathers_before_.try_emplace({&node, step.half});
  if (fresh) gathers->second = gathers_before(node, nodes, step.call);
  for (const Node* gather : gathers->second) {
    std::vector<bool>& again = gathered_again_[gather];
    again.resize(state_.plan.microbatches, false);
    if (again[step.microbatch]) continue;
    again[step.microbatch] = true;
    lower(*gather, step);
  }
}

std::vector<const Node*> StepBuilder::gathers_before(const Node& node, const std::vector<const Node*>& nodes,
                                                     CallId call) const {
  std::vector<const Node*> gathers;
  const auto marked = [](const Node& one, const std::set<ValueId>&) { return one.attrs.has("again"); };
  for (const Node* reader : nodes) {
    const bool near = std::any_of(reader->inputs.begin(), reader->inputs.end(), [&](ValueId input) {
      return std::find(node.inputs.begin(), node.inputs.end(), input) != node.inputs.end();
    });
    if (!near) continue;
    for (const Node* gather : index_.forward_of(call, {reader->inputs.begin(), reader->inputs.end()}, marked))
      gathers.push_back(gather);
  }
  return gathers;
}

}  // namespace prun
