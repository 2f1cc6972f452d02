// Two ops become one, where the device wants that. A linear and the gelu of its output: linear_gelu, which keeps gelu's
// input for backward; a linear_dx and the gelu_dx that alone reads its output: linear_dx_gelu. The add of a residual
// and the norm behind it: add_layernorm, add_rmsnorm; a norm's gradient and the add of the residual's:
// layernorm_grad_add, rmsnorm_grad_add.
//
// After autodiff, so that derivatives know nothing of it. Surprising fact: what the step keeps in memory stays the
// same, for gelu and norms derive from their input anyway; what is saved is a pass over it in forward, and one over the
// gradient.
#include <algorithm>

#include "compile/compile_state.h"
#include "ir/ops.h"

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
Node* maker(std::vector<Node>& nodes, size_t end, ValueId value) {
  for (size_t i = end; i-- > 0 && nodes[i].call == nodes[end].call;)
    if (std::count(nodes[i].outputs.begin(), nodes[i].outputs.end(), value) != 0) return &nodes[i];
  return nullptr;
}

int64_t readers(const std::vector<Node>& nodes, ValueId value) {
  int64_t all = 0;
  for (const Node& node : nodes) all += std::count(node.inputs.begin(), node.inputs.end(), value);
  return all;
}

// Others may read gelu's input, too: it is still made. A linear with two gelus takes in the first.
bool take_in(std::vector<Node>& nodes, size_t at) {
  const Node& gelu = nodes[at];
  if (gelu.op != &ops::gelu || !is_tanh(gelu)) return false;
  Node* linear = maker(nodes, at, gelu.inputs[0]);
  if (linear == nullptr || linear->op != &ops::linear || !linear->attrs.text("act").empty()) return false;
  linear->op = &ops::linear_gelu;
  linear->attrs = product_attrs(*linear);
  linear->outputs = {gelu.outputs[0], gelu.inputs[0]};
  return true;
}

bool take_in_derivative(std::vector<Node>& nodes, size_t at) {
  const Node& gelu_dx = nodes[at];
  if (gelu_dx.op != &ops::gelu_dx || !is_tanh(gelu_dx)) return false;
  const ValueId pre = gelu_dx.inputs[0], dy = gelu_dx.inputs[1];
  Node* product = maker(nodes, at, dy);
  if (product == nullptr || product->op != &ops::linear_dx || readers(nodes, dy) != 1) return false;
  product->op = &ops::linear_dx_gelu;
  product->inputs.push_back(pre);
  product->outputs = gelu_dx.outputs;
  return true;
}

// Norms alone, with an add in front, and behind their gradients.
struct Norm {
  const OpDef &forward, &added, &gradient, &gradient_added;
};
constexpr Norm kNorms[] = {{ops::layernorm, ops::add_layernorm, ops::layernorm_grad, ops::layernorm_grad_add},
                           {ops::rmsnorm, ops::add_rmsnorm, ops::rmsnorm_grad, ops::rmsnorm_grad_add}};

// Whether what a call ends with may be left to the next one, which has its own parameters by then. Not to one that is
// computed twice: it keeps its input, and would have to keep both terms of it.
bool next_may_compute(const CompileState& state, CallId call, CallId next) {
  if (call == next) return true;
  const Call &from = state.graph.calls[call], &to = state.graph.calls[next];
  return call + 1 == next && from.stage == to.stage && !state.strategies.of(state.graph.units[to.unit]).recompute;
}

// The sum keeps its value: others read it, too. Nothing stands between the two ops, so no memory is needed for longer.
bool take_add_in_front(const CompileState& state, std::vector<Node>& nodes, size_t at, const Norm& kinds) {
  if (at == 0 || nodes[at].op != &kinds.forward || nodes[at - 1].op != &ops::add) return false;
  Node& add = nodes[at - 1];
  Node norm = nodes[at];
  const ValueId sum = add.outputs[0];
  if (norm.inputs[0] != sum || !next_may_compute(state, add.call, norm.call)) return false;
  norm.op = &kinds.added;
  norm.inputs[0] = add.inputs[1];
  norm.inputs.insert(norm.inputs.begin(), add.inputs[0]);
  norm.outputs.insert(norm.outputs.begin() + 1, sum);
  add = std::move(norm);
  return true;
}

bool take_add_behind(std::vector<Node>& nodes, size_t at, const Norm& kinds) {
  const Node& add = nodes[at];
  if (at == 0 || add.op != &ops::add || add.call != nodes[at - 1].call) return false;
  Node& norm_grad = nodes[at - 1];
  const ValueId dx = norm_grad.outputs[0];
  const int own = add.inputs[0] == dx ? 0 : 1;
  const ValueId other = add.inputs[1 - own];
  if (norm_grad.op != &kinds.gradient || add.inputs[own] != dx || readers(nodes, dx) != 1) return false;
  norm_grad.op = &kinds.gradient_added;
  norm_grad.inputs.push_back(other);
  norm_grad.outputs[0] = add.outputs[0];
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

void fuse(CompileState& state) {
  const auto& wants = state.options.fuses;
  if (!wants) return;
  if (wants(ops::linear_gelu.name)) fuse_nodes(state.graph.nodes, take_in);
  if (wants(ops::linear_dx_gelu.name)) fuse_nodes(state.backward, take_in_derivative);
  for (const Norm& kinds : kNorms) {
    std::vector<Node>& forward = state.graph.nodes;
    if (wants(kinds.added.name))
      fuse_nodes(forward, [&](auto& nodes, size_t at) { return take_add_in_front(state, nodes, at, kinds); });
    if (wants(kinds.gradient_added.name))
      fuse_nodes(state.backward, [&](auto& nodes, size_t at) { return take_add_behind(nodes, at, kinds); });
  }
}

}  // namespace prun
