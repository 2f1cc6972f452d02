// The walk over the turns: compute ops of each call, and around them what the strategies intended.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "compile/build.h"
#include "compile/step_builder.h"

namespace prun {

StepBuilder::StepBuilder(Draft& draft)
    : draft_(draft), program_(draft.program), recorder_(draft.program, draft.program.step) {
  const Graph& graph = draft.graph;
  tensor_of_.assign(graph.values.size(), -1);
  gradient_done_.assign(graph.values.size(), false);
  forward_.resize(graph.calls.size());
  backward_.resize(graph.calls.size());
  for (const Node& node : graph.nodes) forward_[static_cast<size_t>(node.call)].push_back(&node);
  for (const Node& node : draft.backward) backward_[static_cast<size_t>(node.call)].push_back(&node);
  for (size_t u = 0; u < graph.units.size(); ++u)
    for (size_t i = 0; i < graph.units[u].parameters.size(); ++i)
      whole_gradient_[draft.parameter_grad[static_cast<size_t>(graph.units[u].parameters[i])]] = {static_cast<int>(u), i};
  buckets_.resize(graph.units.size());
  reduced_over_.resize(graph.units.size());
  recorder_.stream("compute");
}

void StepBuilder::run() {
  next_batch();
  for (const Turn& now : draft_.turns) {
    hooks(now, false);
    turn(now);
    hooks(now, true);
    if (now.phase == Phase::forward && now.call + 1 == static_cast<int>(draft_.graph.calls.size())) average_loss();
  }
  for (auto& [strategy, pending] : pending_) flush(strategy, true);
  require_reduced();
  optimize();
}

const std::vector<const Node*>& StepBuilder::nodes_of(const Turn& turn) const {
  return (turn.phase == Phase::forward ? forward_ : backward_)[static_cast<size_t>(turn.call)];
}

void StepBuilder::next_batch() {
  Op op;
  op.def = &op_def("next_batch");
  op.phase = Phase::data;
  op.site = draft_.plan.data.site;
  op.attrs.set("kind", draft_.plan.data.kind);
  op.attrs.set("axis", draft_.data_axis);
  std::string names;
  for (size_t v = 0; v < draft_.graph.values.size(); ++v) {
    const Value& value = draft_.graph.values[v];
    if (value.kind != ValueKind::input) continue;
    tensor_of_[v] = add_tensor(program_, value.name, Role::data, value.type, false, op.site);
    op.writes.push_back(tensor_of_[v]);
    names += (names.empty() ? "" : ",") + value.name;
  }
  if (op.writes.empty()) return;
  op.attrs.set("names", names);
  recorder_.record(0, std::move(op));
}

void StepBuilder::turn(const Turn& turn) {
  for (const Node* node : nodes_of(turn)) lower(*node, turn.phase);
}

int StepBuilder::compute_tensor(const std::string& name, TensorType type, const Site& site) {
  return add_tensor(program_, name, Role::activation, std::move(type), false, site);
}

int StepBuilder::input_of(int value) {
  int tensor = tensor_of_[static_cast<size_t>(value)];
  PRUN_CHECK(tensor >= 0, "value " + draft_.graph.values[static_cast<size_t>(value)].name + " is read before it is written");
  return tensor;
}

void StepBuilder::lower(const Node& node, Phase phase) {
  const Graph& graph = draft_.graph;
  int unit = graph.calls[static_cast<size_t>(node.call)].unit;
  Op op;
  op.def = node.op;
  op.attrs = node.attrs;
  op.phase = phase;
  op.unit = unit_name(unit);
  op.site = node.site;
  for (int input : node.inputs)
    op.reads.push_back(graph.values[static_cast<size_t>(input)].kind == ValueKind::parameter ? parameter(input, node) : input_of(input));
  for (int output : node.outputs) {
    const Value& value = graph.values[static_cast<size_t>(output)];
    int& tensor = tensor_of_[static_cast<size_t>(output)];
    auto whole = whole_gradient_.find(output);
    if (output == graph.loss) {
      tensor = draft_.loss_tensor;
    } else if (whole != whole_gradient_.end()) {
      tensor = gradient_tensor(whole->second.first, whole->second.second, {phase, node.call});
      gradient_done_[static_cast<size_t>(output)] = true;
    } else {
      tensor = compute_tensor(value.name, value.type, value.site);
    }
    op.writes.push_back(tensor);
  }
  recorder_.record(0, std::move(op));
}

void StepBuilder::hooks(const Turn& turn, bool after) {
  const std::string& unit_class = draft_.graph.units[static_cast<size_t>(unit_of(turn))].unit_class;
  for (size_t s = 0; s < draft_.plan.strategies.size(); ++s)
    for (const StrategyUnit& unit : draft_.plan.strategies[s].units)
      if (unit.unit_class == unit_class)
        for (const Hook& hook : unit.hooks)
          if (hook.phase == turn.phase && hook.after == after)
            for (const Intent& intent : hook.intents) carry_out(turn, static_cast<int>(s), intent);
}

int StepBuilder::first_call(int unit) const {
  int call = 0;
  while (draft_.graph.calls[static_cast<size_t>(call)].unit != unit) ++call;
  return call;
}

void StepBuilder::carry_out(const Turn& turn, int strategy, const Intent& intent) {
  // A unit without parameters has nothing to move.
  if (draft_.graph.units[static_cast<size_t>(unit_of(turn))].parameters.empty() && units_read(turn).empty()) return;
  bool of_gradients = intent.kind == "reduce_scatter" || intent.kind == "all_reduce" || (intent.kind == "print" && intent.target == "grads");
  if (of_gradients && turn.call != first_call(unit_of(turn))) return;  // tied weights: whole after the last backward
  if (intent.kind == "all_gather") return gather(turn, strategy, intent);
  if (intent.kind == "ensure") {
    if (!find_live(strategy, intent.handle, unit_of(turn))) gather(turn, strategy, intent);
    return;
  }
  if (intent.kind == "free") return free_gathered(turn, strategy, intent);
  if (intent.kind == "reduce_scatter") return reduce_scatter(turn, intent);
  if (intent.kind == "all_reduce") return all_reduce(turn, strategy, intent);
  if (intent.kind == "print") return print(turn, intent);
  throw plan_error(fmt::format("a hook cannot do '{}'", intent.kind), intent.site);
}

Op StepBuilder::communication(const char* kind, const Intent& intent, const Turn& turn, int read, int write) const {
  Op op;
  op.def = &op_def(kind);
  op.reads = {read};
  op.writes = {write};
  op.axis = intent.axis;
  op.phase = turn.phase;
  op.unit = unit_name(unit_of(turn));
  op.site = intent.site;
  if (std::string(kind) != "all_gather") op.attrs.set("op", intent.op);
  return op;
}

// The stream on which gradients are reduced; scalars travel there too, so that the compute stream waits for an edge
// and not inside a collective.
std::string StepBuilder::gradient_stream() const {
  std::string stream;
  for (const Strategy& strategy : draft_.plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      for (const Hook& hook : unit.hooks)
        for (const Intent& intent : hook.intents)
          if (intent.kind == "reduce_scatter" || intent.kind == "all_reduce") stream = intent.stream;
  return stream;
}

// The loss that is shown is the mean over all data ranks.
void StepBuilder::average_loss() {
  for (const std::string& axis : draft_.loss_axes) {
    Op op;
    op.def = &op_def("all_reduce");
    op.reads = op.writes = {draft_.loss_tensor};
    op.axis = axis;
    op.attrs.set("op", std::string("avg"));
    op.phase = Phase::forward;
    op.site = draft_.graph.values[static_cast<size_t>(draft_.graph.loss)].site;
    op.lane = recorder_.stream(gradient_stream());
    recorder_.record(op.lane, std::move(op));
  }
}

void StepBuilder::print(const Turn& turn, const Intent& intent) {
  Op op;
  op.def = &op_def("print");
  op.phase = turn.phase;
  op.unit = unit_name(unit_of(turn));
  op.site = intent.site;
  std::string parts = "[\"rank\",null," + nlohmann::json(intent.text).dump();
  int unit = unit_of(turn);
  const std::vector<int>& parameters = draft_.graph.units[static_cast<size_t>(unit)].parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (intent.target == "grads") {
      op.reads.push_back(gradient_tensor(unit, i, turn));
    } else if (intent.target == "params") {
      Node reader{op.def, {}, {}, {}, turn.call, intent.site};
      op.reads.push_back(parameter(parameters[i], reader));
    } else {
      continue;
    }
    parts += fmt::format(",{}", op.reads.size() - 1);
  }
  op.attrs.set("parts", parts + "]");
  recorder_.record(0, std::move(op));
}

void communicate(Draft& draft) {
  StepBuilder(draft).run();
  // The last samples of a step: what a rate is counted in.
  Program& program = draft.program;
  const Data& data = draft.plan.data;
  program.data = {data.kind, data.path, data.file_bytes, data.skip_bytes, data.vocab, data.batch};
  program.tokens_per_step = data.batch;
  program.sample_word = "samples";
  for (const Value& value : draft.graph.values) {
    if (value.kind != ValueKind::input || value.name != "tokens") continue;
    program.tokens_per_step = element_count(value.type.shape) * draft.data_ranks;
    program.sample_word = "tokens";
  }
}

}  // namespace prun
