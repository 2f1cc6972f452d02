// Fuses two ops into one if the device has a kernel for it:
//
//   linear, gelu of its output               linear_gelu, which retains gelu's input for backward
//   linear_dx, gelu_dx as its only reader    linear_dx_gelu
//   add of a residual, norm                  add_layernorm, add_rmsnorm
//   norm gradient, add of the residual's     layernorm_grad_add, rmsnorm_grad_add
//
// Runs after autodiff, so that derivatives need no fused forms. Surprising fact: fusion does not change the memory that
// a step retains, because gelu and norms derive from their input anyway; it saves a pass in forward and one over the
// gradient.
#include <algorithm>

#include "compile/compile_state.h"
#include "ir/ops.h"

namespace prun {
namespace {

// The fused ops exist for cuBLASLt's epilogues, which compute the tanh approximation only.
bool is_tanh(const Node& node) { return node.attrs.text("approximate", "") != "none"; }

Attrs product_attrs(const Node& node) {
  Attrs attrs;
  if (node.attrs.integer("transpose") != 0) attrs.set("transpose", int64_t{1});
  if (node.attrs.has("replicas")) attrs.set("replicas", node.attrs.integer("replicas"));
  return attrs;
}

// Returns the node before `end`, in the same call, that writes `value`; null = another call or a parameter.
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

// Other ops may read gelu's input, so that it remains an output. A linear with two gelus fuses with the first.
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

// A norm, its fusion with a preceding add, its gradient, and the gradient's fusion with a following add.
struct Norm {
  const OpDef &forward, &added, &gradient, &gradient_added;
};
constexpr Norm kNorms[] = {{ops::layernorm, ops::add_layernorm, ops::layernorm_grad, ops::layernorm_grad_add},
                           {ops::rmsnorm, ops::add_rmsnorm, ops::rmsnorm_grad, ops::rmsnorm_grad_add}};

// Returns whether `next` may compute the last op of `call`: it is the same call, or the following one on the same
// stage. A recomputed call may not, because it would have to retain both operands instead of its input.
bool next_may_compute(const CompileState& state, CallId call, CallId next) {
  if (call == next) return true;
  const Call &from = state.graph.calls[call], &to = state.graph.calls[next];
  return call + 1 == next && from.stage == to.stage &&
         !state.strategies.of(state.graph.units[to.unit]).recomputes(to.stage);
}

// The sum remains an output because other ops read it. The two ops are adjacent, so that no live range grows.
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
