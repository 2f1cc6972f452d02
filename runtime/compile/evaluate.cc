// Builds the evaluation body: the forward steps of the schedule on evaluation data, with the hooks of strategies around
// forward and a loss of its own. Dropout is the identity.
#include <fmt/format.h>

#include <algorithm>

#include "compile/ir_build.h"
#include "compile/step_builder.h"
#include "ir/ops.h"

namespace prun {
namespace {

std::vector<StageStep> forward_of(const std::vector<StageStep>& steps) {
  std::vector<StageStep> forward;
  for (const StageStep& step : steps) {
    if (step.front().phase != Phase::forward) continue;
    forward.push_back(step);
    forward.back().with_next = false;
  }
  return forward;
}

// Drops nodes that only backward reads, such as the expert counts that are all-reduced for the load-balancing loss.
// `predicts`: drops nodes that only the loss reads.
std::vector<Node> nodes_for_result(const Graph& graph, bool predicts) {
  Table<ValueId, bool> wanted(graph.values.size(), false);
  for (const LossTerm& term : loss_terms(graph))
    for (const ValueId value : term.values) wanted[value] = !predicts;
  std::vector<Node> kept;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const auto is_wanted = [&](ValueId value) { return wanted[value]; };
    if (node->op != &ops::write_rows && std::none_of(node->outputs.begin(), node->outputs.end(), is_wanted)) continue;
    for (ValueId input : node->inputs) wanted[input] = true;
    kept.push_back(*node);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

// Moves an index source past the samples of all training steps. Earlier steps may have had other batch sizes, so that
// the schedule's sample count is used instead of steps times batch size.
DataSource behind_training(DataSource data, const Program& program) {
  if (data.kind == "index" && data.first > 0) data.first = position_after(program, program.schedule.steps).samples;
  return data;
}

}  // namespace

// Makes the forward pass read the running averages of the parameters. Casts them, and loads those that are offloaded.
void StepBuilder::read_averages() {
  const Site& site = state_.plan.evaluation->site;
  for (const UnitId unit : state_.graph.units.ids()) {
    if (!state_.trains(unit)) continue;
    const UnitStorage& storage = state_.storage[unit];
    TensorId& average = state_.averages[unit] = storage.optimizer.back();
    const auto pass = [&](const OpDef& def, Dtype dtype) {
      const TensorId to =
          add_tensor(state_.program, fmt::format("{}.ema.{}", state_.unit_name(unit), dtype_name(dtype)),
                     Role::activation, {dtype, {storage.shard}}, false, site);
      Op op = make_op(def, {average}, {to}, Phase::forward, site);
      if (def.name == ops::cast.name) op.attrs.set("dtype", std::string(dtype_name(dtype)));
      op.unit = state_.unit_name(unit);
      emitter_.compute(std::move(op));
      average = to;
    };
    if (storage.offload) pass(ops::load, state_.master_dtype());
    if (!storage.compute.none()) pass(ops::cast, state_.plan.param_dtype);
  }
}

// The copy makes the compute stream end with the loss, on whichever stream it was averaged.
void StepBuilder::run_forward() {
  if (state_.plan.evaluation->ema) read_averages();
  walk_schedule();
  if (body_.loss.none()) return finish();
  if (state_.plan.pipeline) average_loss();
  emitter_.compute(make_op(ops::copy, {state_.reduced_results()}, {body_.results.none() ? body_.loss : body_.results},
                           Phase::forward, state_.plan.evaluation->site));
  finish();
}

void evaluate(CompileState& state) {
  if (!state.plan.evaluation) return;
  const Evaluation& evaluation = *state.plan.evaluation;
  const std::optional<Forward>& alone = state.options.forward;
  const bool predicts = alone && alone->predicts;
  Program& program = state.program;
  program.bodies.push_back({predicts ? "prediction" : "evaluation",
                            {alone ? 0 : evaluation.every, evaluation.batches, 0, evaluation.first && !alone},
                            {},
                            alone ? DataSource(evaluation.data) : behind_training(evaluation.data, program),
                            {}});

  CompileState forward = state;
  if (!predicts) add_results(forward, forward.program.bodies.back(), "eval_loss", true, evaluation.site);
  forward.graph.nodes = nodes_for_result(state.graph, predicts);
  forward.backward.clear();
  forward.steps = forward_of(state.steps);
  Body& body = forward.program.bodies.back();
  Body of_batch = body;  // its results are those of one batch, which the body's op copies
  if (!predicts) add_results(forward, of_batch, "batch_loss", false, evaluation.site);
  StepBuilder(forward, body).run_forward();
  state.program = std::move(forward.program);
}

}  // namespace prun
