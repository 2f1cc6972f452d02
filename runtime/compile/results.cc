// The numbers that a body reports: its loss, and the terms of the numbers that the plan names. They are one vector, so
// that one all-reduce an axis covers them.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "compile/compile_state.h"
#include "compile/ir_build.h"
#include "ir/ops.h"

namespace prun {

void add_results(CompileState& state, Body& body, const std::string& name, bool persistent, const Site& site) {
  const Graph& graph = state.graph;
  const bool is_step = &body == &state.program.step();
  std::vector<const NamedNumber*> named;
  for (const NamedNumber& number : graph.named)
    if (!is_step || number.in_steps) named.push_back(&number);
  std::set<int> used;
  for (const NamedNumber* number : named)
    for (const auto* parts : {&number->terms, &number->over})
      for (const NamedNumber::Part& part : *parts) used.insert(part.term);
  PRUN_CHECK(used.size() < size_t{4} * kMostNamed, std::to_string(used.size()));
  const Dtype dtype = graph.values[graph.loss].type.dtype;
  state.term_tensors.assign(graph.terms.size(), TensorId());
  state.results = TensorId();
  if (used.empty()) {
    state.loss_tensor = body.loss = add_tensor(state.program, name, Role::data, {dtype, {}}, persistent, site);
    return;
  }
  state.results = body.results = add_tensor(state.program, name + ".results", Role::data,
                                            {dtype, {static_cast<int64_t>(used.size()) + 1}}, persistent, site);
  state.loss_tensor = body.loss = add_view(state.program, name, body.results, 0, {});
  std::vector<int64_t> slots(graph.terms.size(), -1);
  for (const int term : used) {
    slots[term] = static_cast<int64_t>(std::distance(used.begin(), used.find(term))) + 1;
    state.term_tensors[term] =
        add_view(state.program, fmt::format("{}.term{}", name, slots[term]), body.results, slots[term], {});
  }
  body.named.clear();
  for (const NamedNumber* number : named) {
    NamedResult& result = body.named.emplace_back();
    result.name = number->name;
    for (const NamedNumber::Part& part : number->terms) result.terms.push_back({slots[part.term], part.factor});
    for (const NamedNumber::Part& part : number->over) result.over.push_back({slots[part.term], part.factor});
  }
}

void drop_evaluated_only(CompileState& state) {
  Graph& graph = state.graph;
  Table<ValueId, bool> wanted(graph.values.size(), false), measured(graph.values.size(), false);
  for (const LossTerm& term : loss_terms(graph))
    for (const ValueId value : term.values) (term.in_steps ? wanted : measured)[value] = true;
  for (const Node& node : state.backward)
    for (const ValueId input : node.inputs) wanted[input] = true;
  std::vector<Node> kept;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const auto any = [&](const Table<ValueId, bool>& set) {
      return std::ranges::any_of(node->outputs, [&](ValueId value) { return set[value]; });
    };
    const bool drops = any(measured) && !any(wanted);
    for (const ValueId input : node->inputs) {
      const bool of_evaluations = drops || (node->op == &ops::by_phase && input != node->inputs[0]);
      (of_evaluations ? measured : wanted)[input] = true;
    }
    if (!drops) kept.push_back(std::move(*node));
  }
  std::ranges::reverse(kept);
  graph.nodes = std::move(kept);
}

}  // namespace prun
