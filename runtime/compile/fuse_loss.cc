// Fuses a cross_entropy with its gradient if the device has a kernel for it: cross_entropy_and_grad overwrites the
// logits with their gradient while a row is in the cache. This saves a pass over the largest tensor of a step, and one
// of its two copies.
//
// Runs after autodiff, like fuse.cc. Surprising fact: forward computes the gradient without more memory, because
// the gradient occupies the buffer of the logits until backward. An evaluation, or the forward pass of a recomputed
// unit, needs the loss only and lowers the op as a cross_entropy.
#include <algorithm>

#include "compile/compile_state.h"
#include "ir/ops.h"

namespace prun {
namespace {

bool holds(const std::vector<ValueId>& values, ValueId value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Returns whether only evaluations compute the node, a metric, so that no step finds its operands overwritten.
bool is_evaluated_only(const Graph& graph, const Node& node) {
  return std::ranges::any_of(graph.terms, [&](const LossTerm& term) {
    return !term.in_steps && !node.outputs.empty() && holds(term.values, node.outputs[0]);
  });
}

// Returns the number of operands that are this value, over all nodes.
int64_t count_readers(const CompileState& state, ValueId value) {
  int64_t readers = 0;
  for (const std::vector<Node>* nodes : {&state.graph.nodes, &state.backward})
    for (const Node& node : *nodes)
      if (!is_evaluated_only(state.graph, node)) readers += std::count(node.inputs.begin(), node.inputs.end(), value);
  return readers;
}

// Returns whether the loss's call itself computes the logits; an alias or a value from another stage must not be
// overwritten.
bool owns_logits(const CompileState& state, const Node& loss, ValueId logits) {
  const std::vector<Node>& nodes = state.graph.nodes;
  const auto maker = std::find_if(nodes.begin(), nodes.end(), [&](const Node& node) {
    return node.call == loss.call && node.op->op_class == OpClass::compute && holds(node.outputs, logits);
  });
  if (maker == nodes.end() || maker->op != &ops::reshape) return maker != nodes.end();
  // A reshape is an alias of its input, which therefore has no other reader.
  return count_readers(state, maker->inputs[0]) == 1 && owns_logits(state, loss, maker->inputs[0]);
}

// Returns whether only the loss and its gradient read the logits, and only their call reads the gradient.
bool may_overwrite(const CompileState& state, const Node& loss, const Node& gradient) {
  for (const std::vector<Node>* nodes : {&state.graph.nodes, &state.backward})
    for (const Node& node : *nodes)
      if (node.call != loss.call && holds(node.inputs, gradient.outputs[0])) return false;
  return count_readers(state, loss.inputs[0]) == 2 && gradient.call == loss.call &&
         owns_logits(state, loss, loss.inputs[0]);
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
