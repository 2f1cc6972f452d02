// The eval body: the forward turns of the step once more, on data and a loss of their own, with what the strategies do
// around forward. Dropout lets everything pass.
#include <algorithm>

#include "compile/build.h"
#include "compile/step_builder.h"

namespace prun {
namespace {

std::vector<StageTurn> forward_of(const std::vector<StageTurn>& turns) {
  std::vector<StageTurn> forward;
  for (const StageTurn& turn : turns)
    if (turn.front().phase == Phase::forward) forward.push_back(turn);
  return forward;
}

// Nodes that only backward reads go: the counts of a mixture of experts, say, which travel for the load-balancing loss.
std::vector<Node> nodes_for_loss(const Graph& graph) {
  std::vector<bool> wanted(graph.values.size(), false);
  wanted[graph.loss] = true;
  std::vector<Node> kept;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const auto is_wanted = [&](int value) { return wanted[value]; };
    if (std::none_of(node->outputs.begin(), node->outputs.end(), is_wanted)) continue;
    for (ValueId input : node->inputs) wanted[input] = true;
    kept.push_back(*node);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

}  // namespace

// The compute stream ends with the loss, whatever stream has averaged it.
void StepBuilder::run_forward() {
  walk_turns();
  if (draft_.plan.pipeline) average_loss();
  Op copy;
  copy.def = &op_def("copy");
  copy.reads = {draft_.loss_tensor};
  copy.writes = {program_.eval_loss_tensor};
  copy.phase = Phase::forward;
  copy.site = draft_.plan.evaluation->site;
  recorder_.record(0, std::move(copy));
}

void evaluate(Draft& draft) {
  if (!draft.plan.evaluation) return;
  const Evaluation& evaluation = *draft.plan.evaluation;
  Program& program = draft.program;
  program.schedule.eval_every = evaluation.every;
  program.schedule.eval_batches = evaluation.batches;
  program.eval_data = data_source(evaluation.data);
  const TensorType loss = program.tensors[draft.loss_tensor].type();
  program.eval_loss_tensor = add_tensor(program, "eval_loss", Role::data, loss, true, evaluation.site);

  Draft forward = draft;
  forward.graph.nodes = nodes_for_loss(draft.graph);
  forward.backward.clear();
  forward.turns = forward_of(draft.turns);
  forward.loss_tensor = add_tensor(forward.program, "batch_loss", Role::data, loss, false, evaluation.site);
  StepBuilder(forward, forward.program.eval).run_forward();
  draft.program = std::move(forward.program);
}

}  // namespace prun
