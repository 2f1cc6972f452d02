// Built once per body from the graph and the schedule.
#include "compile/step_index.h"

#include <algorithm>

#include "ir/ops.h"

namespace prun {

StepIndex::StepIndex(const CompileState& state)
    : state_(state), for_weights_(split_backward(state.graph, state.backward)) {
  forward_.resize(state.graph.calls.size());
  backward_.resize(state.graph.calls.size());
  gathers_again_.assign(state.graph.calls.size(), 0);
  for (const Node& node : state.graph.nodes) {
    forward_[node.call].push_back(&node);
    if (node.attrs.has("again")) gathers_again_[node.call] = 1;
    if (!node.outputs.empty() && state.kept_results.contains(node.outputs[0])) kept_results_.insert(&node);
  }
  for (const Node& node : state.backward) backward_[node.call].push_back(&node);
  find_aliases();
  first_call_.assign(state.graph.units.size(), {});
  parts_.resize(state.graph.units.size());
  for (CallId call = state.graph.calls.last(); call >= 0; call = call - 1)
    first_call_[state.graph.calls[call].unit] = call;
  for (UnitId unit : state.graph.units.ids()) {
    parts_[unit].insert(parts_[unit].begin(), unit);
    const UnitId whole = state.graph.units[unit].part_of;
    if (whole.none()) continue;
    parts_[whole].push_back(unit);
    first_call_[unit] = first_call_[whole];
  }
  for (const StageStep& stage : state.steps)
    for (const ScheduleStep& step : stage.calls) {
      if (step.phase != Phase::backward) continue;
      for (const bool weights : {false, true}) {
        if (step.half == (weights ? Half::input : Half::weight)) continue;
        auto [found, fresh] = microbatches_.try_emplace({step.call, weights}, step.microbatch, step.microbatch);
        found->second.second = step.microbatch;
      }
    }
}

void StepIndex::find_aliases() {
  const auto each = [&](const auto& f) {
    for (const std::vector<Node>* nodes : {&state_.graph.nodes, &state_.backward})
      for (const Node& node : *nodes) f(node);
  };
  bool any = false;
  each([&](const Node& node) { any = any || node.op == &ops::reshape; });
  if (!any) return;
  Table<ValueId, int> readers(state_.graph.values.size(), 0);
  Table<ValueId, bool> summed(state_.graph.values.size(), false);  // an all-reduce overwrites it
  each([&](const Node& node) {
    for (const ValueId input : node.inputs) {
      readers[input]++;
      if (node.op == &ops::all_reduce) summed[input] = true;
    }
  });
  each([&](const Node& node) {
    if (node.op != &ops::reshape) return;
    const ValueId x = node.inputs[0];
    const bool moved = node.attrs.has("axis") && node.attrs.integer("from") != node.attrs.integer("to");
    const bool alone = readers[x] == 1, kept = !moved && !summed[x] && !summed[node.outputs[0]];
    if (state_.graph.values[x].kind != ValueKind::parameter && (alone || kept)) aliases_.insert(&node);
  });
}

std::vector<const Node*> StepIndex::nodes_of(const ScheduleStep& step) const {
  if (step.phase == Phase::forward) return forward_[step.call];
  std::vector<const Node*> nodes;
  for (const Node* node : backward_[step.call])
    if (step.half == Half::whole || (step.half == Half::weight) == for_weights(*node)) nodes.push_back(node);
  return nodes;
}

std::vector<const Node*> StepIndex::forward_of(
    CallId call, std::set<ValueId> wanted,
    const std::function<bool(const Node&, const std::set<ValueId>& wanted)>& again) const {
  std::vector<const Node*> nodes;
  for (auto node = forward_[call].rbegin(); node != forward_[call].rend(); ++node) {
    const auto& outputs = (*node)->outputs;
    const bool any = std::any_of(outputs.begin(), outputs.end(), [&](ValueId id) { return wanted.count(id) != 0; });
    if (!any || !again(**node, wanted)) continue;
    wanted.insert((*node)->inputs.begin(), (*node)->inputs.end());
    nodes.push_back(*node);
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

std::vector<const Node*> StepIndex::recomputed(CallId call) const {
  std::set<ValueId> needed;
  for (const Node* node : backward_[call]) needed.insert(node->inputs.begin(), node->inputs.end());
  return forward_of(call, needed, [this](const Node& node, const std::set<ValueId>& wanted) {
    if (kept_results_.contains(&node)) return false;
    bool results = node.op->loss != Loss::none;
    for (int i = 0; i < std::ssize(node.outputs); ++i)
      results = results || ((i < node.op->side_first || i >= node.op->side_end) && wanted.count(node.outputs[i]) != 0);
    return results;
  });
}

std::vector<const Node*> StepIndex::run_again(const ScheduleStep& step) const {
  if (!recomputes_whole(step)) return recomputed(step.call);
  std::vector<const Node*> nodes = forward_[step.call];
  std::erase_if(nodes, [this](const Node* node) { return kept_results_.contains(node) || node->op == &ops::update; });
  return nodes;
}

std::vector<UnitId> StepIndex::sharded_units_read(const ScheduleStep& step) const {
  std::vector<UnitId> units;
  std::vector<const Node*> nodes = nodes_of(step);
  if (step.phase == Phase::backward && recomputes(step)) {
    const std::vector<const Node*> again = run_again(step);
    nodes.insert(nodes.end(), again.begin(), again.end());
  }
  for (const Node* node : nodes)
    for (ValueId input : node->inputs) {
      const Value& value = state_.graph.values[input];
      if (value.kind != ValueKind::parameter || !state_.storage[value.unit].sharded) continue;
      if (std::find(units.begin(), units.end(), value.unit) == units.end()) units.push_back(value.unit);
    }
  return units;
}

}  // namespace prun
