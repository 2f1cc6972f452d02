// The walk over the turns: compute ops of each call, and around them what the strategies intended.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "compile/ir_build.h"
#include "compile/step_builder.h"
#include "ir/ops.h"

namespace prun {

StepBuilder::StepBuilder(CompileState& state, Body& body)
    : state_(state),
      program_(state.program),
      body_(body),
      evaluates_(&body != &state.program.step()),
      recorder_(state.program, body) {
  const Graph& graph = state.graph;
  for (const Pool& pool : program_.pools) pool_index_.try_emplace(pool.name, static_cast<int>(pool_index_.size()));
  tensor_of_.assign(static_cast<size_t>(state.plan.microbatches), Table<ValueId, TensorId>(graph.values.size()));
  forward_.resize(graph.calls.size());
  backward_.resize(graph.calls.size());
  for (const Node& node : graph.nodes) forward_[node.call].push_back(&node);
  for (const Node& node : state.backward) backward_[node.call].push_back(&node);
  for (size_t u = 0; u < graph.units.size(); ++u)
    for (size_t i = 0; i < graph.units[u].parameters.size(); ++i) {
      int gradient = state.parameter_grad[graph.units[u].parameters[i]];
      if (gradient >= 0) whole_gradient_[gradient] = {static_cast<int>(u), i};
    }
  buckets_.resize(graph.units.size());
  reduced_over_.resize(graph.units.size());
  recorder_.stream("compute");
  name_lanes();
  index_turns();
  split_backward();
  find_crossings();
}

// Ranks of different programs meet on a lane, so its number comes from the plan and not from a program's own streams.
void StepBuilder::name_lanes() {
  auto add = [&](const std::string& name) { lanes_.try_emplace(name, static_cast<int>(lanes_.size())); };
  add("");
  for (const Strategy& strategy : state_.plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      for (const Hook& hook : unit.hooks)
        for (const HookAction& action : hook.actions) add(action.stream);
  for (const Axis& axis : state_.plan.mesh.axes()) add(axis.name);
}

// Records a communication op on a stream of that name, on its lane.
void StepBuilder::communicate_on(const std::string& stream, Op op) {
  op.lane = lanes_.at(stream);
  recorder_.record(recorder_.stream(stream), std::move(op));
}

// Which microbatch is the first and which the last to go backward through each call.
void StepBuilder::index_turns() {
  for (const StageStep& stage : state_.steps)
    for (const ScheduleStep& turn : stage.calls) {
      if (turn.phase != Phase::backward) continue;
      for (const bool weights : {false, true}) {
        if (turn.half == (weights ? Half::input : Half::weight)) continue;
        first_microbatch_.try_emplace({turn.call, weights}, turn.microbatch);
        last_microbatch_[{turn.call, weights}] = turn.microbatch;
      }
    }
}

void StepBuilder::walk_turns() {
  next_batch();
  size_t turns = state_.steps.size();
  for (size_t i = 0; i < turns; ++i) {
    if (i == 0) receive(state_.steps[0]);
    if (i + 1 < turns) receive(state_.steps[i + 1]);  // while turn i computes
    const std::vector<ScheduleStep>& calls = state_.steps[i].calls;
    for (size_t c = 0; c < calls.size(); ++c) {
      next_ = c + 1 < calls.size() ? &calls[c + 1] : i + 1 < turns ? &state_.steps[i + 1].front() : nullptr;
      microbatch_ = calls[c].microbatch;
      if (calls[c].half != Half::weight) hooks(calls[c], false);
      turn(calls[c]);
      hooks(calls[c], true);
    }
    send(state_.steps[i]);
    const ScheduleStep& last = calls.back();
    bool loss_is_whole = last.phase == Phase::forward && last.microbatch + 1 == state_.plan.microbatches &&
                         last.call + 1 == std::ssize(state_.graph.calls);
    if (loss_is_whole && !state_.plan.pipeline) average_loss();
  }
}

void StepBuilder::run() {
  walk_turns();
  for (auto& [strategy, pending] : pending_) flush(strategy, true);
  require_reduced();
  if (state_.plan.pipeline) average_loss();
  exchange_tied_gradients();
  optimize();
}

std::vector<const Node*> StepBuilder::nodes_of(const ScheduleStep& turn) const {
  if (turn.phase == Phase::forward) return forward_[turn.call];
  std::vector<const Node*> nodes;
  for (const Node* node : backward_[turn.call]) {
    bool weights = for_weights_[node - state_.backward.data()];
    if (turn.half == Half::whole || (turn.half == Half::weight) == weights) nodes.push_back(node);
  }
  return nodes;
}

std::string StepBuilder::microbatch_name(const std::string& name) const {
  return state_.plan.microbatches == 1 ? name : fmt::format("{}#{}", name, microbatch_);
}

// All samples of the step at once; a microbatch is a view of them.
void StepBuilder::next_batch() {
  Op op;
  op.def = &ops::next_batch;
  op.phase = Phase::data;
  const Data& data = evaluates_ ? state_.plan.evaluation->data : state_.plan.data;
  op.site = data.site;
  op.attrs.set("kind", data.kind);
  op.attrs.set("axis", state_.data_axes);
  if (state_.plan.microbatches > 1) op.attrs.set("micro", int64_t{state_.plan.microbatches});
  for (const Strategy& strategy : state_.plan.strategies)
    if (strategy.splits == Splits::tokens) {
      op.attrs.set("tokens_axis", strategy.axes.front());
      op.attrs.set("chunks", int64_t{2});
    }
  std::vector<bool> read(state_.graph.values.size(), false);
  for (const std::vector<std::vector<const Node*>>* calls : {&forward_, &backward_})
    for (size_t c = 0; c < calls->size(); ++c)
      for (const Node* node : (*calls)[c])
        for (ValueId input : node->inputs) read[input] = read[input] || here(static_cast<int>(c));
  std::string names;
  for (size_t v = 0; v < state_.graph.values.size(); ++v) {
    const Value& value = state_.graph.values[v];
    if (value.kind != ValueKind::input || !read[v]) continue;
    int64_t samples = value.type.shape.front();
    TensorType all = value.type;
    all.shape.front() = samples * state_.plan.microbatches;
    TensorId tensor = add_tensor(program_, value.name, Role::data, all, false, op.site);
    op.writes.push_back(tensor);
    names += (names.empty() ? "" : ",") + value.name;
    for (microbatch_ = 0; microbatch_ < state_.plan.microbatches; ++microbatch_)
      tensor_of(static_cast<int>(v)) = state_.plan.microbatches == 1
                                           ? tensor
                                           : add_view(program_, microbatch_name(value.name), tensor,
                                                      microbatch_ * element_count(value.type.shape), value.type.shape);
  }
  if (op.writes.empty()) return;
  op.attrs.set("names", names);
  recorder_.record(0, std::move(op));
}

void StepBuilder::turn(const ScheduleStep& turn) {
  const bool again = turn.phase == Phase::backward && recomputes(turn);
  if (again && turn.half != Half::weight) recompute(turn);
  if (turn.half == Half::weight) take_early_gradients(turn);
  if (turn.phase == Phase::backward && turn.half != Half::input && is_first(turn) &&
      turn.call == first_call(unit_of(turn)))
    zero_missing_gradients(turn);
  const std::vector<const Node*> nodes = nodes_of(turn);
  for (const Node* node : nodes) {
    if (turn.phase == Phase::backward && !again) gather_again(*node, nodes, turn);
    lower(*node, turn);
  }
  if (turn.phase == Phase::backward && turn.half != Half::input) sum_partial_gradients(turn);
}

// What the input half made of a sharded unit's gradients goes where the weight half writes the rest.
void StepBuilder::take_early_gradients(const ScheduleStep& turn) {
  for (const EarlyGradient& early : early_gradients_[{turn.call, turn.microbatch}]) {
    Op op;
    op.def = &ops::copy;
    op.reads = {early.tensor};
    op.writes = {gradient_tensor(early.unit, early.parameter, turn)};
    op.phase = turn.phase;
    op.unit = unit_name(early.unit);
    op.microbatch = state_.plan.microbatches > 1 ? turn.microbatch : -1;
    op.site = program_.buffers[program_.tensors[early.tensor].buffer].site;
    recorder_.record(0, std::move(op));
  }
}

TensorId StepBuilder::compute_tensor(const std::string& name, TensorType type, const Site& site) {
  return add_tensor(program_, name, Role::activation, std::move(type), false, site);
}

TensorId StepBuilder::input_of(int value) {
  TensorId tensor = tensor_of(value);
  PRUN_CHECK(tensor >= 0, "value " + state_.graph.values[value].name + " is read before it is written");
  return tensor;
}

// into += what.
void StepBuilder::add_in_place(TensorId into, TensorId what, const ScheduleStep& turn, int stream, const Site& site) {
  Op op;
  op.def = &ops::add;
  op.reads = {into, what};
  op.writes = {into};
  op.phase = turn.phase;
  op.unit = unit_name(unit_of(turn));
  op.microbatch = state_.plan.microbatches > 1 ? turn.microbatch : -1;
  op.site = site;
  recorder_.record(stream, std::move(op));
}

void StepBuilder::lower(const Node& node, const ScheduleStep& turn) {
  const Graph& graph = state_.graph;
  // A name for what is there already.
  if (node.op == &ops::enter || (evaluates_ && node.op == &ops::dropout)) {
    tensor_of(node.outputs[0]) = input_of(node.inputs[0]);
    return;
  }
  const bool with_gradient = node.op == &ops::cross_entropy_and_grad;
  if (with_gradient && (evaluates_ || (turn.phase == Phase::forward && recomputes(turn))))
    return lower(without_gradient(node), turn);
  if (node.op == &ops::ring_attention || node.op == &ops::ring_attention_grad) return lower_ring(node, turn);
  Op op;
  op.def = node.op;
  op.attrs = node.attrs;
  op.attrs.values().erase("again");
  if (op.is(ops::dropout)) {  // the mask depends on the sample's place in the whole batch
    int64_t samples = graph.values[node.inputs[0]].type.shape.front();
    op.attrs.set("rows_axis", state_.data_axes);
    int64_t ranks = 1;
    for (const std::string& axis : state_.plan.batch_axes) ranks *= state_.plan.mesh.size(axis);
    op.attrs.set("first", samples * ranks * turn.microbatch);
    op.attrs.set("samples", samples);
  }
  op.phase = turn.phase;
  op.unit = unit_name(graph.calls[node.call].unit);
  op.microbatch = state_.plan.microbatches > 1 ? turn.microbatch : -1;
  op.site = node.site;
  for (ValueId input : node.inputs)
    op.reads.push_back(graph.values[input].kind == ValueKind::parameter ? parameter(input, node) : input_of(input));
  std::vector<std::pair<TensorId, TensorId>> sums;  // what is added to which tensor afterwards
  for (ValueId output : node.outputs) {
    const Value& value = graph.values[output];
    TensorId& tensor = tensor_of(output);
    auto whole = whole_gradient_.find(output);
    if (output == graph.loss && turn.phase == Phase::forward) {
      const bool first = !std::exchange(loss_begun_, true);
      tensor = first ? state_.loss_tensor : compute_tensor(microbatch_name(value.name), value.type, value.site);
      if (!first) sums.emplace_back(state_.loss_tensor, tensor);
    } else if (whole != whole_gradient_.end()) {
      auto [unit, index] = whole->second;
      const UnitStorage& storage = state_.storage[unit];
      bool kept = !storage.sharded || storage.whole_grad >= 0;  // from microbatch to microbatch
      bool early = !kept && turn.half == Half::input;           // its bucket opens with the other half
      bool summed = kept && !is_first(turn, for_weights_[&node - state_.backward.data()]);
      tensor = summed || early ? compute_tensor(microbatch_name(value.name), value.type, value.site)
                               : gradient_tensor(unit, index, turn);
      if (summed) sums.emplace_back(gradient_tensor(unit, index, turn), tensor);
      if (early) early_gradients_[{turn.call, turn.microbatch}].push_back({unit, index, tensor});
    } else if (op.is(ops::all_reduce)) {
      tensor = op.reads[0];                                       // a sum takes the place of its parts
    } else if (with_gradient && output == node.outputs.back()) {  // the gradient that of the logits
      tensor = add_view(program_, microbatch_name(value.name), op.reads[0], 0, value.type.shape);
    } else {
      tensor = compute_tensor(microbatch_name(value.name), value.type, value.site);
    }
    op.writes.push_back(tensor);
  }
  if (op.communicates()) {
    std::string axis = op.axis = op.attrs.text("axis");
    op.attrs.values().erase("axis");
    op.attrs.values().erase("gradient");
    communicate_on(axis, std::move(op));
  } else {
    recorder_.record(0, std::move(op));
  }
  for (auto [into, what] : sums) add_in_place(into, what, turn, 0, node.site);
}

// A unit and those that hold the parameters that it keeps apart.
std::vector<UnitId> StepBuilder::parts_of(UnitId unit) const {
  std::vector<UnitId> parts = {unit};
  for (size_t u = 0; u < state_.graph.units.size(); ++u)
    if (state_.graph.units[u].part_of == unit) parts.push_back(static_cast<int>(u));
  return parts;
}

void StepBuilder::hooks(const ScheduleStep& turn, bool after) {
  const std::string& unit_class = state_.graph.units[unit_of(turn)].unit_class;
  for (size_t s = 0; s < state_.plan.strategies.size(); ++s)
    for (const StrategyUnit& unit : state_.plan.strategies[s].units)
      if (unit.unit_class == unit_class)
        for (const Hook& hook : unit.hooks)
          if (hook.phase == turn.phase && hook.after == after)
            for (const HookAction& action : hook.actions) apply(turn, static_cast<int>(s), action);
}

CallId StepBuilder::first_call(UnitId unit) const {
  CallId call = 0;
  while (state_.graph.calls[call].unit != unit) ++call;
  return call;
}

void StepBuilder::apply(const ScheduleStep& turn, int strategy, const HookAction& action) {
  UnitId unit = unit_of(turn);
  // A unit without parameters has nothing to move.
  if (state_.graph.units[unit].parameters.empty() && units_read(turn).empty()) return;
  // After the first half of backward its inputs' readers are done; gradients are there after the second.
  if (turn.half != Half::whole &&
      (action.kind == "free" ? turn.half == Half::weight
                             : turn.half == Half::input && (action.kind == "reduce_scatter" ||
                                                            action.kind == "all_reduce" || action.kind == "print")))
    return;
  bool of_gradients = action.kind == "reduce_scatter" || action.kind == "all_reduce" ||
                      (action.kind == "print" && action.target == "grads");
  if (of_gradients && turn.call != first_call(unit)) return;  // tied weights: whole after the last backward
  if (action.kind == "all_gather") return gather(turn, strategy, action);
  if (action.kind == "ensure") {
    if (!find_live(strategy, action.handle, unit)) gather(turn, strategy, action);
    return;
  }
  if (action.kind == "free") return free_gathered(turn, strategy, action);
  if (action.kind == "print") return print(turn, action);
  if (action.kind == "reduce_scatter" || action.kind == "all_reduce") return reduce(turn, strategy, action);
  throw plan_error(fmt::format("a hook cannot do '{}'", action.kind), action.site);
}

Op StepBuilder::communication(const OpDef& kind, const HookAction& action, const ScheduleStep& turn, TensorId read,
                              TensorId write) const {
  Op op;
  op.def = &kind;
  op.reads = {read};
  op.writes = {write};
  op.axis = action.axis;
  op.phase = turn.phase;
  op.unit = unit_name(unit_of(turn));
  op.microbatch = state_.plan.microbatches > 1 ? turn.microbatch : -1;
  op.site = action.site;
  if (&kind != &ops::all_gather) op.attrs.set("op", action.op);
  return op;
}

// The stream on which gradients are reduced; scalars travel there too, so that the compute stream waits for an edge
// and not inside a collective.
std::string StepBuilder::gradient_stream() const {
  std::string stream;
  for (const Strategy& strategy : state_.plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      for (const Hook& hook : unit.hooks)
        for (const HookAction& action : hook.actions)
          if (action.kind == "reduce_scatter" || action.kind == "all_reduce") stream = action.stream;
  return stream;
}

// The loss that is shown is the mean over all data ranks. On a pipeline's other ranks it is 0 until the last one's is
// added.
void StepBuilder::average_loss() {
  const Site& site = state_.graph.values[state_.graph.loss].site;
  auto reduce = [&](const std::string& axis, const char* how) {
    Op op;
    op.def = &ops::all_reduce;
    op.reads = op.writes = {state_.loss_tensor};
    op.axis = axis;
    op.attrs.set("op", std::string(how));
    op.phase = Phase::forward;
    op.site = site;
    communicate_on(gradient_stream(), std::move(op));
  };
  if (state_.plan.pipeline && !here(static_cast<int>(state_.graph.calls.size()) - 1)) {
    Op zero;
    zero.def = &ops::fill;
    zero.writes = {state_.loss_tensor};
    zero.attrs.set("value", 0.0);
    zero.phase = Phase::forward;
    zero.site = site;
    recorder_.record(0, std::move(zero));
  } else {
    for (const std::string& axis : state_.loss_axes) reduce(axis, "avg");
  }
  if (state_.plan.pipeline) reduce(state_.plan.pipeline->axis, "sum");
}

void StepBuilder::print(const ScheduleStep& turn, const HookAction& action) {
  Op op;
  op.def = &ops::print;
  op.phase = turn.phase;
  op.unit = unit_name(unit_of(turn));
  op.site = action.site;
  std::string parts = "[\"rank\",null," + nlohmann::json(action.text).dump();
  UnitId unit = unit_of(turn);
  const std::vector<ValueId>& parameters = state_.graph.units[unit].parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (action.target == "grads") {
      op.reads.push_back(gradient_tensor(unit, i, turn));
    } else if (action.target == "params") {
      Node reader{op.def, {}, {}, {}, turn.call, action.site};
      op.reads.push_back(parameter(parameters[i], reader));
    } else {
      continue;
    }
    parts += fmt::format(",{}", op.reads.size() - 1);
  }
  op.attrs.set("parts", parts + "]");
  recorder_.record(0, std::move(op));
}

DataSource data_source(const Data& data) {
  return {data.kind, data.path, data.file_bytes, data.skip_bytes, data.vocab, data.batch};
}

void build_step(CompileState& state) {
  StepBuilder(state, state.program.step()).run();
  // The last samples of a step: what a rate is counted in.
  Program& program = state.program;
  const Data& data = state.plan.data;
  program.step().data = data_source(data);
  program.tokens_per_step = data.batch;
  program.sample_word = "samples";
  for (const Value& value : state.graph.values) {
    if (value.kind != ValueKind::input || value.name != "tokens") continue;
    program.tokens_per_step = element_count(value.type.shape) * state.data_ranks * state.plan.microbatches;
    program.sample_word = "tokens";
  }
}

}  // namespace prun
