// A cross_entropy takes its gradient in, where the device wants that: cross_entropy_and_grad writes the gradient of the
// logits over the logits, while a row is in the cache. Two passes over the largest tensor of a step become one, and of
// its two copies one stays.
//
// After autodiff, as fuse.cc. Surprising fact: the gradient is made in forward, and a step keeps no more for it: from
// there to backward it lies where the logits lay. Whoever wants the loss only, an evaluation or the forward pass of a
// unit that backward computes again, lowers it as a cross_entropy.
#include <algorithm>

#include "compile/compile_state.h"
#include "ir/ops.h"

namespace prun {
namespace {

bool holds(const std::vector<ValueId>& values, ValueId value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// The logits lie in memory of their own, filled in the loss's call: what only names another value, or came from another
// stage, is not to be written over.
bool owns_logits(const Graph& graph, const Node& loss) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.call == loss.call && node.op->op_class == OpClass::compute && holds(node.outputs, loss.inputs[0]);
  });
}

// The loss and its gradient alone read the logits, and nothing outside their call the gradient.
bool may_overwrite(const CompileState& state, const Node& loss, const Node& gradient) {
  int64_t readers = 0;
  for (const std::vector<Node>* nodes : {&state.graph.nodes, &state.backward})
    for (const Node& node : *nodes) {
      readers += std::count(node.inputs.begin(), node.inputs.end(), loss.inputs[0]);
      if (node.call != loss.call && holds(node.inputs, gradient.outputs[0])) return false;
    }
  return readers == 2 && gradient.call == loss.call && owns_logits(state.graph, loss);
}

}  // namespace

void fuse_losses(CompileState& state) {
  const auto& wants = state.options.fuses;
  if (!wants || !wants(ops::cross_entropy_and_grad.name)) return;
  for (Node& loss : state.graph.nodes) {
    if (loss.op != &ops::cross_entropy) continue;
    const auto gradient = std::find_if(state.backward.begin(), state.backward.end(), [&](const Node& node) {
      return node.op == &ops::cross_entropy_grad && node.inputs[2] == loss.outputs[1];
    });
    if (gradient == state.backward.end() || !may_overwrite(state, loss, *gradient)) continue;
    loss.op = &ops::cross_entropy_and_grad;
    loss.outputs.push_back(gradient->outputs[0]);
    state.backward.erase(gradient);
  }
}

Node without_gradient(const Node& loss) {
  Node alone = loss;
  alone.op = &ops::cross_entropy;
  alone.outputs.pop_back();
  return alone;
}

}  // namespace prun
