// run() lists the parts of a step in order.
#include "compile/step_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compile/ir_build.h"
#include "ir/ops.h"

namespace prun {

StepBuilder::StepBuilder(CompileState& state, Body& body)
    : state_(state),
      body_(body),
      evaluates_(&body != &state.program.step()),
      emitter_(state, body),
      index_(state),
      gathered_(state, emitter_, index_, !evaluates_),
      gradients_(state, emitter_, index_),
      transfers_(state, emitter_),
      terms_(loss_terms(state.graph)) {}

void StepBuilder::run() {
  walk_schedule();
  gradients_.finish();
  if (state_.plan.pipeline) average_loss();
  transfers_.exchange_tied_gradients(index_);
  OptimizerStep(state_, emitter_).run();
  finish();
}

void StepBuilder::finish() {
  gathered_.finish();
  if (body_.repeat.any()) body_.repeat.ops.resize(body_.streams.size());
}

void StepBuilder::walk_schedule() {
  next_batch();
  const int steps = std::ssize(state_.steps);
  std::vector<int> now, next;  // the slots that run at once: one, or a pair
  const auto take = [&](int first) {
    std::vector<int> taken;
    for (int i = first; i < steps; ++i) {
      taken.push_back(i);
      if (!state_.steps[i].with_next) break;
    }
    return taken;
  };
  const auto receive = [&](const std::vector<int>& turns) {
    for (const int turn : turns) transfers_.receive(state_.steps[turn]);
  };
  for (receive(now = take(0)); !now.empty(); now = std::move(next)) {
    mark_repeat(now.front());
    receive(next = take(now.back() + 1));  // while these slots compute
    if (evaluates_) emitter_.compute_after(transfers_.gone());
    emit(now);
    if (!state_.plan.pipeline) average_loss_behind(state_.steps[now.back()]);
  }
}

// Averages the loss if this slot has made it whole.
void StepBuilder::average_loss_behind(const StageStep& stage) {
  const ScheduleStep& last = stage.back();
  const bool loss_is_whole = last.phase == Phase::forward && last.microbatch + 1 == state_.plan.microbatches &&
                             last.call == state_.graph.calls.last();
  if (loss_is_whole && has_loss()) average_loss();
}

// Returns the first call behind schedule step `turn`; null: there is none.
const ScheduleStep* StepBuilder::first_call_after(size_t turn) const {
  for (size_t i = turn + 1; i < state_.steps.size(); ++i)
    if (!state_.steps[i].calls.empty()) return &state_.steps[i].front();
  return nullptr;
}

// Marks the ops of each stream that the slots of the repeating period have emitted.
void StepBuilder::mark_repeat(int turn) {
  if (!state_.shortened) return;
  Repeat& repeat = body_.repeat;
  const Shortened& shortened = *state_.shortened;
  const Repeat::Span turns = (evaluates_ ? shortened.forward : shortened.of_ranks)[state_.pipeline_rank];
  if (turn != turns.first && turn != turns.first + turns.count) return;
  repeat.ops.resize(body_.streams.size());
  for (StreamId stream : body_.streams.ids()) {
    Repeat::Span& ops = repeat.ops[stream];
    const int made = std::ssize(body_.streams[stream].ops);
    (turn == turns.first ? ops.first : ops.count) = made;
  }
  if (turn == turns.first) return;
  for (Repeat::Span& ops : repeat.ops) ops.count -= ops.first;
  repeat.times = shortened.times;
  repeat.microbatches = shortened.microbatches;
}

namespace {

// Collects for next_batch which of its outputs are shares of targets (ir/ops/README.md).
class SharesToWrite {
 public:
  explicit SharesToWrite(const Graph& graph) : limits_(id_limits(graph)) {}

  // `ignores`: the shares of the output's targets, if other ranks write them.
  void add(const Value& output, const std::optional<TargetShares>& ignores) {
    const TargetShares shares = output.shares.value_or(TargetShares{"", "", ignores ? ignores->ignored : 0});
    any_ = any_ || output.shares || ignores;
    targets_ += (ignored_.empty() ? "" : ",") + shares.targets;
    weights_ += (ignored_.empty() ? "" : ",") + shares.weights;
    ignored_.push_back(shares.ignored);
    int64_t classes = 0;
    for (const IdLimit& limit : limits_)
      if (limit.input == (output.shares ? shares.targets : ignores ? output.name : ""))
        classes = classes == 0 ? limit.size : std::min(classes, limit.size);
    classes_.push_back(classes);
  }

  void describe(Attrs& attrs) const {
    if (!any_) return;
    attrs.set("share_of", targets_);
    attrs.set("weighted_by", weights_);
    attrs.set("ignored", ignored_);
    attrs.set("classes", classes_);
  }

 private:
  std::vector<IdLimit> limits_;
  bool any_ = false;
  std::string targets_, weights_;
  std::vector<int64_t> ignored_, classes_;
};

}  // namespace

namespace {

// Returns whether each rank of context parallelism has a part of the input's samples. The inputs that context
// parallelism adds are the tokens that a rank's queries see, and the order of all tokens.
bool is_split(const CompileState& state, ValueId input) {
  const Shape& shape = state.graph.values[input].type.shape;
  if (!state.plan.graph.values.has(input)) return shape.size() > 2;
  const Shape& unsplit = state.plan.graph.values[input].type.shape;
  return unsplit.size() >= 2 && unsplit[1] != shape[1];
}

// Returns the shares of the targets that an input holds, if only other stages read them: ignored targets are -1 on this
// one, too, because its ops may compute with them.
std::optional<TargetShares> ignored_elsewhere(const CompileState& state, const Table<ValueId, char>& read,
                                              const Value& input) {
  std::optional<TargetShares> result;
  for (const ValueId id : state.graph.values.ids()) {
    const std::optional<TargetShares>& shares = state.graph.values[id].shares;
    if (!shares || shares->targets != input.name) continue;
    if (read[id] != 0) return std::nullopt;
    result = shares;
  }
  return result;
}

}  // namespace

// Loads all samples of the step at once; a microbatch is a view of them.
void StepBuilder::next_batch() {
  const Data& data = evaluates_ ? state_.plan.evaluation->data : state_.plan.data;
  const int microbatches = state_.plan.microbatches;
  Op op = make_op(ops::next_batch, {}, {}, Phase::data, data.site);
  op.attrs.set("kind", data.kind);
  op.attrs.set("axis", state_.data_axes);
  if (microbatches > 1) op.attrs.set("micro", state_.microbatches());
  for (const Strategy& strategy : state_.plan.strategies)
    if (strategy.splits == Splits::tokens && state_.plan.mesh.size(strategy.axes.front()) > 1) {
      op.attrs.set("tokens_axis", strategy.axes.front());
      op.attrs.set("chunks", int64_t{2});
      if (strategy.share == "documents") op.attrs.set("token_shares", strategy.share);
    }
  Table<ValueId, char> read(state_.graph.values.size(), 0);
  for (CallId call : state_.graph.calls.ids())
    if (state_.is_here(call))
      for (const std::vector<const Node*>* nodes : {&index_.forward(call), &index_.backward(call)})
        for (const Node* node : *nodes)
          for (const ValueId input : node->inputs) read[input] = 1;
  std::string names;
  std::vector<int64_t> whole;  // by output: whether its samples are not split
  SharesToWrite shares(state_.plan.graph);
  for (ValueId id : state_.graph.values.ids()) {
    const Value& value = state_.graph.values[id];
    if (value.kind != ValueKind::input || read[id] == 0) continue;
    TensorType all = value.type;
    all.shape.front() *= state_.microbatches();
    const TensorId tensor = add_tensor(state_.program, value.name, Role::data, all, false, op.site);
    op.writes.push_back(tensor);
    names += (names.empty() ? "" : ",") + value.name;
    shares.add(value, ignored_elsewhere(state_, read, value));
    whole.push_back(is_split(state_, id) ? 0 : 1);
    for (int m = 0; m < microbatches; ++m)
      emitter_.tensor_of(id, m) = microbatches == 1 ? tensor
                                                    : add_view(state_.program, emitter_.name_of(value.name, m), tensor,
                                                               m * value.count(), value.type.shape);
  }
  if (op.writes.empty()) return;
  op.attrs.set("names", names);
  if (op.attrs.has("tokens_axis") && std::count(whole.begin(), whole.end(), 1) > 0) op.attrs.set("whole", whole);
  shares.describe(op.attrs);
  emitter_.compute(std::move(op));
}

void StepBuilder::hooks(const ScheduleStep& step, bool after, const ScheduleStep* next) {
  for (const auto& [strategy, hook] : state_.strategies.of(state_.graph.units[state_.unit_of(step)]).hooks)
    if (hook->phase == step.phase && hook->after == after)
      for (const HookAction& action : hook->actions) apply(step, strategy, action, next);
}

void StepBuilder::apply(const ScheduleStep& step, int strategy, const HookAction& action, const ScheduleStep* next) {
  // A unit without parameters needs no hooks.
  const std::vector<UnitId> parts = index_.parts_of(state_.unit_of(step));
  const auto empty = [&](UnitId unit) { return state_.graph.units[unit].parameters.empty(); };
  if (std::all_of(parts.begin(), parts.end(), empty) && index_.sharded_units_read(step).empty()) return;
  const bool reduces = action.kind == "reduce_scatter" || action.kind == "all_reduce", prints = action.kind == "print";
  // Inputs have no more readers after the first half of backward; gradients are complete after the second.
  if (action.kind == "free" ? step.half == Half::weight : (reduces || prints) && step.half == Half::input) return;
  // Gradients of tied weights are whole after the last backward.
  if ((reduces || (prints && action.target == "grads")) && !index_.is_first_call(step)) return;
  if (action.kind == "all_gather" || action.kind == "ensure") {
    if (alternates_) refuse_gather_of_pair(action);
    gathered_.gather(step, strategy, action);
  } else if (action.kind == "free") {
    gathered_.free(step, strategy, action, next);
  } else if (prints) {
    print(step, action);
  } else if (reduces) {
    gradients_.reduce(step, strategy, action);
  } else {
    throw plan_error(fmt::format("a hook cannot do '{}'", action.kind), action.site);
  }
}

// Averages the reported loss and terms over all data ranks. On a rank of a pipeline those of other stages are 0 before
// the stages' are added up.
void StepBuilder::average_loss() {
  const Site& site = state_.graph.values[state_.graph.loss].site;
  const TensorId results = state_.reduced_results();
  const auto reduce = [&](const std::string& axis, const char* how) {
    emitter_.communicate(state_.strategies.gradient_stream(),
                         make_all_reduce(results, how, axis, Phase::forward, site));
  };
  const auto zero = [&](TensorId tensor) { emitter_.compute(make_zero(tensor, Phase::forward, site)); };
  if (begun_.empty()) {
    zero(results);
  } else {
    std::vector<TensorId> all = state_.term_tensors;
    all.push_back(state_.loss_tensor);
    for (const TensorId tensor : all)
      if (!tensor.none() && !begun_.contains(tensor)) zero(tensor);
    for (const std::string& axis : state_.loss_axes) reduce(axis, "avg");
  }
  if (state_.plan.pipeline) reduce(state_.plan.pipeline->axis, "sum");
}

void StepBuilder::print(const ScheduleStep& step, const HookAction& action) {
  const UnitId unit = state_.unit_of(step);
  Op op = make_op(ops::print, {}, {}, step.phase, action.site);
  op.unit = state_.unit_name(unit);
  std::string parts = "[\"rank\",null," + nlohmann::json(action.text).dump();
  const std::vector<ValueId>& parameters = state_.graph.units[unit].parameters;
  for (int i = 0; i < std::ssize(parameters); ++i) {
    if (action.target == "grads")
      op.reads.push_back(gradients_.tensor({unit, i}, step));
    else if (action.target == "params")
      op.reads.push_back(gathered_.parameter(parameters[i], ops::print, action.site));
    else
      break;
    parts += fmt::format(",{}", i);
  }
  op.attrs.set("parts", parts + "]");
  emitter_.compute(std::move(op));
}

void build_step(CompileState& state) {
  if (std::ranges::all_of(state.graph.terms, [](const LossTerm& term) { return term.in_steps; })) {
    StepBuilder(state, state.program.step()).run();
  } else {
    std::vector<Node> all = state.graph.nodes;
    drop_evaluated_only(state);
    StepBuilder(state, state.program.step()).run();
    state.graph.nodes = std::move(all);
  }
  // The samples or tokens per step, the unit of rates.
  Program& program = state.program;
  const Data& data = state.plan.data;
  program.step().data = data;
  program.tokens_per_step = data.global_batch;
  program.sample_word = "samples";
  for (const Value& value : state.graph.values) {
    if (value.kind != ValueKind::input || value.name != "tokens") continue;
    program.tokens_per_step = element_count(value.type.shape) * state.data_ranks * state.microbatches();
    program.sample_word = "tokens";
  }
  RunPosition& begin = program.schedule.begin;
  if (begin.tokens < 0) begin.tokens = begin.samples * (program.tokens_per_step / data.global_batch);
}

}  // namespace prun
