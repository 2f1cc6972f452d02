// Linears take gelus in, where the device wants that: a linear and the gelu of its output become linear_gelu, which
// keeps gelu's input for backward; a linear_dx and the gelu_dx that alone reads its output become linear_dx_gelu.
//
// After autodiff, so that derivatives know nothing of it. Surprising fact: what the step keeps in memory stays the
// same, for gelu derives from its input anyway; what is saved is a pass over it in forward, and one over the gradient.
#include <algorithm>

#include "compile/draft.h"

namespace prun {
namespace {

// cuBLASLt, which made these ops worth having, knows the tanh form only.
bool is_tanh(const Node& node) { return node.attrs.text("approximate", "tanh") == "tanh"; }

Attrs product_attrs(const Node& node) {
  Attrs attrs;
  if (node.attrs.integer("transpose") != 0) attrs.set("transpose", int64_t{1});
  return attrs;
}

// The node of the same call before `end` that makes `value`; null where it is another call's, or a parameter.
Node* maker(std::vector<Node>& nodes, size_t end, int value) {
  for (size_t i = end; i-- > 0 && nodes[i].call == nodes[end].call;)
    if (std::count(nodes[i].outputs.begin(), nodes[i].outputs.end(), value) != 0) return &nodes[i];
  return nullptr;
}

int64_t readers(const std::vector<Node>& nodes, int value) {
  int64_t all = 0;
  for (const Node& node : nodes) all += std::count(node.inputs.begin(), node.inputs.end(), value);
  return all;
}

// Others may read gelu's input, too: it is still made. A linear with two gelus takes in the first.
bool take_in(std::vector<Node>& nodes, size_t at) {
  const Node& gelu = nodes[at];
  if (gelu.op->name != "gelu" || !is_tanh(gelu)) return false;
  Node* linear = maker(nodes, at, gelu.inputs[0]);
  if (linear == nullptr || linear->op->name != "linear" || !linear->attrs.text("act").empty()) return false;
  linear->op = &op_def("linear_gelu");
  linear->attrs = product_attrs(*linear);
  linear->outputs = {gelu.outputs[0], gelu.inputs[0]};
  return true;
}

bool take_in_derivative(std::vector<Node>& nodes, size_t at) {
  const Node& gelu_dx = nodes[at];
  if (gelu_dx.op->name != "gelu_dx" || !is_tanh(gelu_dx)) return false;
  const int pre = gelu_dx.inputs[0], dy = gelu_dx.inputs[1];
  Node* product = maker(nodes, at, dy);
  if (product == nullptr || product->op->name != "linear_dx" || readers(nodes, dy) != 1) return false;
  product->op = &op_def("linear_dx_gelu");
  product->inputs.push_back(pre);
  product->outputs = gelu_dx.outputs;
  return true;
}

template <class Rule>
void fuse_nodes(std::vector<Node>& nodes, Rule rule) {
  for (size_t i = 0; i < nodes.size();) {
    if (rule(nodes, i))
      nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(i));
    else
      ++i;
  }
}

}  // namespace

void fuse(Draft& draft) {
  const auto& wants = draft.options.fuses;
  if (!wants) return;
  if (wants("linear_gelu")) fuse_nodes(draft.graph.nodes, take_in);
  if (wants("linear_dx_gelu")) fuse_nodes(draft.backward, take_in_derivative);
}

}  // namespace prun
