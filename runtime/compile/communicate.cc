// The walk over the turns: compute ops of each call, and around them what the strategies intended.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "compile/build.h"
#include "compile/step_builder.h"

namespace prun {

StepBuilder::StepBuilder(Draft& draft, Body& body)
    : draft_(draft), program_(draft.program), evaluates_(&body == &draft.program.eval), recorder_(draft.program, body) {
  const Graph& graph = draft.graph;
  for (const Pool& pool : program_.pools) pool_index_.try_emplace(pool.name, static_cast<int>(pool_index_.size()));
  tensor_of_.assign(static_cast<size_t>(draft.plan.microbatches), Table<ValueId, TensorId>(graph.values.size()));
  forward_.resize(graph.calls.size());
  backward_.resize(graph.calls.size());
  for (const Node& node : graph.nodes) forward_[node.call].push_back(&node);
  for (const Node& node : draft.backward) backward_[node.call].push_back(&node);
  for (size_t u = 0; u < graph.units.size(); ++u)
    for (size_t i = 0; i < graph.units[u].parameters.size(); ++i) {
      int gradient = draft.parameter_grad[graph.units[u].parameters[i]];
      if (gradient >= 0) whole_gradient_[gradient] = {static_cast<int>(u), i};
    }
  buckets_.resize(graph.units.size());
  reduced_over_.resize(graph.units.size());
  recorder_.stream("compute");
  name_lanes();
  index_turns();
  split_halves();
  find_crossings();
}

// Ranks of different programs meet on a lane, so its number comes from the plan and not from a program's own streams.
void StepBuilder::name_lanes() {
  auto add = [&](const std::string& name) { lanes_.try_emplace(name, static_cast<int>(lanes_.size())); };
  add("");
  for (const Strategy& strategy : draft_.plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      for (const Hook& hook : unit.hooks)
        for (const Intent& intent : hook.intents) add(intent.stream);
  for (const Axis& axis : draft_.plan.mesh.axes()) add(axis.name);
}

// Records a communication op on a stream of that name, on its lane.
void StepBuilder::communicate_on(const std::string& stream, Op op) {
  op.lane = lanes_.at(stream);
  recorder_.record(recorder_.stream(stream), std::move(op));
}

// Which microbatch is the first and which the last to go backward through each call.
void StepBuilder::index_turns() {
  for (const StageTurn& stage : draft_.turns)
    for (const Turn& turn : stage.calls) {
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
  size_t turns = draft_.turns.size();
  for (size_t i = 0; i < turns; ++i) {
    if (i == 0) receive(draft_.turns[0]);
    if (i + 1 < turns) receive(draft_.turns[i + 1]);  // while turn i computes
    const std::vector<Turn>& calls = draft_.turns[i].calls;
    for (size_t c = 0; c < calls.size(); ++c) {
      next_ = c + 1 < calls.size() ? &calls[c + 1] : i + 1 < turns ? &draft_.turns[i + 1].front() : nullptr;
      microbatch_ = calls[c].microbatch;
      if (calls[c].half != Half::weight) hooks(calls[c], false);
      turn(calls[c]);
      hooks(calls[c], true);
    }
    send(draft_.turns[i]);
    const Turn& last = calls.back();
    bool loss_is_whole = last.phase == Phase::forward && last.microbatch + 1 == draft_.plan.microbatches &&
                         last.call + 1 == std::ssize(draft_.graph.calls);
    if (loss_is_whole && !draft_.plan.pipeline) average_loss();
  }
}

void StepBuilder::run() {
  walk_turns();
  for (auto& [strategy, pending] : pending_) flush(strategy, true);
  require_reduced();
  if (draft_.plan.pipeline) average_loss();
  exchange_tied_gradients();
  optimize();
}

std::vector<const Node*> StepBuilder::nodes_of(const Turn& turn) const {
  if (turn.phase == Phase::forward) return forward_[turn.call];
  std::vector<const Node*> nodes;
  for (const Node* node : backward_[turn.call]) {
    bool weights = for_weights_[node - draft_.backward.data()];
    if (turn.half == Half::whole || (turn.half == Half::weight) == weights) nodes.push_back(node);
  }
  return nodes;
}

std::string StepBuilder::microbatch_name(const std::string& name) const {
  return draft_.plan.microbatches == 1 ? name : fmt::format("{}#{}", name, microbatch_);
}

// All samples of the step at once; a microbatch is a view of them.
void StepBuilder::next_batch() {
  Op op;
  op.def = &op_def("next_batch");
  op.phase = Phase::data;
  const Data& data = evaluates_ ? draft_.plan.evaluation->data : draft_.plan.data;
  op.site = data.site;
  op.attrs.set("kind", data.kind);
  if (evaluates_) op.attrs.set("eval", int64_t{1});
  op.attrs.set("axis", draft_.data_axes);
  if (draft_.plan.microbatches > 1) op.attrs.set("micro", int64_t{draft_.plan.microbatches});
  for (const Strategy& strategy : draft_.plan.strategies)
    if (strategy.splits == Splits::tokens) {
      op.attrs.set("tokens_axis", strategy.axes.front());
      op.attrs.set("chunks", int64_t{2});
    }
  std::vector<bool> read(draft_.graph.values.size(), false);
  for (const std::vector<std::vector<const Node*>>* calls : {&forward_, &backward_})
    for (size_t c = 0; c < calls->size(); ++c)
      for (const Node* node : (*calls)[c])
        for (ValueId input : node->inputs) read[input] = read[input] || here(static_cast<int>(c));
  std::string names;
  for (size_t v = 0; v < draft_.graph.values.size(); ++v) {
    const Value& value = draft_.graph.values[v];
    if (value.kind != ValueKind::input || !read[v]) continue;
    int64_t samples = value.type.shape.front();
    TensorType all = value.type;
    all.shape.front() = samples * draft_.plan.microbatches;
    TensorId tensor = add_tensor(program_, value.name, Role::data, all, false, op.site);
    op.writes.push_back(tensor);
    names += (names.empty() ? "" : ",") + value.name;
    for (microbatch_ = 0; microbatch_ < draft_.plan.microbatches; ++microbatch_)
      tensor_of(static_cast<int>(v)) = draft_.plan.microbatches == 1
                                           ? tensor
                                           : add_view(program_, microbatch_name(value.name), tensor,
                                                      microbatch_ * element_count(value.type.shape), value.type.shape);
  }
  if (op.writes.empty()) return;
  op.attrs.set("names", names);
  recorder_.record(0, std::move(op));
}

void StepBuilder::turn(const Turn& turn) {
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
void StepBuilder::take_early_gradients(const Turn& turn) {
  for (const EarlyGradient& early : early_gradients_[{turn.call, turn.microbatch}]) {
    Op op;
    op.def = &op_def("copy");
    op.reads = {early.tensor};
    op.writes = {gradient_tensor(early.unit, early.parameter, turn)};
    op.phase = turn.phase;
    op.unit = unit_name(early.unit);
    op.microbatch = draft_.plan.microbatches > 1 ? turn.microbatch : -1;
    op.site = program_.buffers[program_.tensors[early.tensor].buffer].site;
    recorder_.record(0, std::move(op));
  }
}

TensorId StepBuilder::compute_tensor(const std::string& name, TensorType type, const Site& site) {
  return add_tensor(program_, name, Role::activation, std::move(type), false, site);
}

TensorId StepBuilder::input_of(int value) {
  TensorId tensor = tensor_of(value);
  PRUN_CHECK(tensor >= 0, "value " + draft_.graph.values[value].name + " is read before it is written");
  return tensor;
}

// into += what.
void StepBuilder::add_in_place(TensorId into, TensorId what, const Turn& turn, int stream, const Site& site) {
  Op op;
  op.def = &op_def("add");
  op.reads = {into, what};
  op.writes = {into};
  op.phase = turn.phase;
  op.unit = unit_name(unit_of(turn));
  op.microbatch = draft_.plan.microbatches > 1 ? turn.microbatch : -1;
  op.site = site;
  recorder_.record(stream, std::move(op));
}

void StepBuilder::lower(const Node& node, const Turn& turn) {
  const Graph& graph = draft_.graph;
  // A name for what is there already.
  if (node.op->name == "enter" || (evaluates_ && node.op->name == "dropout")) {
    tensor_of(node.outputs[0]) = input_of(node.inputs[0]);
    return;
  }
  const bool with_gradient = node.op->name == "cross_entropy_and_grad";
  if (with_gradient && (evaluates_ || (turn.phase == Phase::forward && recomputes(turn))))
    return lower(without_gradient(node), turn);
  if (node.op->name == "ring_attention" || node.op->name == "ring_attention_grad") return lower_ring(node, turn);
  Op op;
  op.def = node.op;
  op.attrs = node.attrs;
  op.attrs.values().erase("again");
  if (op.is("dropout")) {  // the mask depends on the sample's place in the whole batch
    int64_t samples = graph.values[node.inputs[0]].type.shape.front();
    op.attrs.set("rows_axis", draft_.data_axes);
    int64_t ranks = 1;
    for (const std::string& axis : draft_.plan.batch_axes) ranks *= draft_.plan.mesh.size(axis);
    op.attrs.set("first", samples * ranks * turn.microbatch);
    op.attrs.set("samples", samples);
  }
  op.phase = turn.phase;
  op.unit = unit_name(graph.calls[node.call].unit);
  op.microbatch = draft_.plan.microbatches > 1 ? turn.microbatch : -1;
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
      tensor = first ? draft_.loss_tensor : compute_tensor(microbatch_name(value.name), value.type, value.site);
      if (!first) sums.emplace_back(draft_.loss_tensor, tensor);
    } else if (whole != whole_gradient_.end()) {
      auto [unit, index] = whole->second;
      const UnitState& state = draft_.states[unit];
      bool kept = !state.sharded || state.whole_grad >= 0;  // from microbatch to microbatch
      bool early = !kept && turn.half == Half::input;       // its bucket opens with the other half
      bool summed = kept && !is_first(turn, for_weights_[&node - draft_.backward.data()]);
      tensor = summed || early ? compute_tensor(microbatch_name(value.name), value.type, value.site)
                               : gradient_tensor(unit, index, turn);
      if (summed) sums.emplace_back(gradient_tensor(unit, index, turn), tensor);
      if (early) early_gradients_[{turn.call, turn.microbatch}].push_back({unit, index, tensor});
    } else if (op.is("all_reduce")) {
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
  for (size_t u = 0; u < draft_.graph.units.size(); ++u)
    if (draft_.graph.units[u].part_of == unit) parts.push_back(static_cast<int>(u));
  return parts;
}

void StepBuilder::hooks(const Turn& turn, bool after) {
  const std::string& unit_class = draft_.graph.units[unit_of(turn)].unit_class;
  for (size_t s = 0; s < draft_.plan.strategies.size(); ++s)
    for (const StrategyUnit& unit : draft_.plan.strategies[s].units)
      if (unit.unit_class == unit_class)
        for (const Hook& hook : unit.hooks)
          if (hook.phase == turn.phase && hook.after == after)
            for (const Intent& intent : hook.intents) carry_out(turn, static_cast<int>(s), intent);
}

CallId StepBuilder::first_call(UnitId unit) const {
  CallId call = 0;
  while (draft_.graph.calls[call].unit != unit) ++call;
  return call;
}

void StepBuilder::carry_out(const Turn& turn, int strategy, const Intent& intent) {
  UnitId unit = unit_of(turn);
  // A unit without parameters has nothing to move.
  if (draft_.graph.units[unit].parameters.empty() && units_read(turn).empty()) return;
  // After the first half of backward its inputs' readers are done; gradients are there after the second.
  if (turn.half != Half::whole &&
      (intent.kind == "free" ? turn.half == Half::weight
                             : turn.half == Half::input && (intent.kind == "reduce_scatter" ||
                                                            intent.kind == "all_reduce" || intent.kind == "print")))
    return;
  bool of_gradients = intent.kind == "reduce_scatter" || intent.kind == "all_reduce" ||
                      (intent.kind == "print" && intent.target == "grads");
  if (of_gradients && turn.call != first_call(unit)) return;  // tied weights: whole after the last backward
  if (intent.kind == "all_gather") return gather(turn, strategy, intent);
  if (intent.kind == "ensure") {
    if (!find_live(strategy, intent.handle, unit)) gather(turn, strategy, intent);
    return;
  }
  if (intent.kind == "free") return free_gathered(turn, strategy, intent);
  if (intent.kind == "print") return print(turn, intent);
  if (intent.kind == "reduce_scatter" || intent.kind == "all_reduce") return reduce(turn, strategy, intent);
  throw plan_error(fmt::format("a hook cannot do '{}'", intent.kind), intent.site);
}

Op StepBuilder::communication(const char* kind, const Intent& intent, const Turn& turn, TensorId read,
                              TensorId write) const {
  Op op;
  op.def = &op_def(kind);
  op.reads = {read};
  op.writes = {write};
  op.axis = intent.axis;
  op.phase = turn.phase;
  op.unit = unit_name(unit_of(turn));
  op.microbatch = draft_.plan.microbatches > 1 ? turn.microbatch : -1;
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

// The loss that is shown is the mean over all data ranks. On a pipeline's other ranks it is 0 until the last one's is
// added.
void StepBuilder::average_loss() {
  const Site& site = draft_.graph.values[draft_.graph.loss].site;
  auto reduce = [&](const std::string& axis, const char* how) {
    Op op;
    op.def = &op_def("all_reduce");
    op.reads = op.writes = {draft_.loss_tensor};
    op.axis = axis;
    op.attrs.set("op", std::string(how));
    op.phase = Phase::forward;
    op.site = site;
    communicate_on(gradient_stream(), std::move(op));
  };
  if (draft_.plan.pipeline && !here(static_cast<int>(draft_.graph.calls.size()) - 1)) {
    Op zero;
    zero.def = &op_def("fill");
    zero.writes = {draft_.loss_tensor};
    zero.attrs.set("value", 0.0);
    zero.phase = Phase::forward;
    zero.site = site;
    recorder_.record(0, std::move(zero));
  } else {
    for (const std::string& axis : draft_.loss_axes) reduce(axis, "avg");
  }
  if (draft_.plan.pipeline) reduce(draft_.plan.pipeline->axis, "sum");
}

void StepBuilder::print(const Turn& turn, const Intent& intent) {
  Op op;
  op.def = &op_def("print");
  op.phase = turn.phase;
  op.unit = unit_name(unit_of(turn));
  op.site = intent.site;
  std::string parts = "[\"rank\",null," + nlohmann::json(intent.text).dump();
  UnitId unit = unit_of(turn);
  const std::vector<ValueId>& parameters = draft_.graph.units[unit].parameters;
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

DataSource data_source(const Data& data) {
  return {data.kind, data.path, data.file_bytes, data.skip_bytes, data.vocab, data.batch};
}

void communicate(Draft& draft) {
  StepBuilder(draft, draft.program.step).run();
  // The last samples of a step: what a rate is counted in.
  Program& program = draft.program;
  const Data& data = draft.plan.data;
  program.data = data_source(data);
  program.tokens_per_step = data.batch;
  program.sample_word = "samples";
  for (const Value& value : draft.graph.values) {
    if (value.kind != ValueKind::input || value.name != "tokens") continue;
    program.tokens_per_step = element_count(value.type.shape) * draft.data_ranks * draft.plan.microbatches;
    program.sample_word = "tokens";
  }
}

}  // namespace prun
