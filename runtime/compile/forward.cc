// Prepares the forward pass of `prun eval` and `prun predict`. The step body remains empty and the run has no step: the
// evaluation, or the prediction, runs once after init has read the weights.
//
// Surprising fact: a prediction reads the training data, and the last batch is filled up with samples that it has
// already written (WholeSet): their rows are written again, with equal bytes.
#include "compile/forward.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "compile/compile_state.h"
#include "ir/ops.h"

namespace prun {
namespace {

// Returns the set that the plan trains with, with the end that it holds out for evaluations.
Data whole_set(const Plan& plan) {
  Data data = plan.data;
  if (data.count == 0)
    throw plan_error(fmt::format("prun predict needs data with an end, and prun.data.{} has none", data.kind),
                     data.site);
  if (data.capacity > 0)
    throw plan_error(
        "prun predict writes a row for each sample, and streams of packed documents are none: leave pack out",
        data.site);
  if (plan.evaluation) {
    const Data& held = plan.evaluation->data;
    if (data.part && held.files == data.files && held.first == data.first + data.count) data.count += held.count;
  }
  data.order = "given";
  data.whole = data.context > 0 ? (data.count - 1) / data.context : data.count;
  return data;
}

Evaluation all_samples(const Plan& plan) {
  Evaluation all;
  all.every = 1;
  all.data = whole_set(plan);
  all.batches = WholeSet{all.data.whole, all.data.global_batch}.batches();
  all.site = plan.data.site;
  return all;
}

// Returns the losses that the model's loss contains.
std::vector<const Node*> losses_in(const Graph& graph) {
  Table<ValueId, bool> wanted(graph.values.size(), false);
  for (const LossTerm& term : loss_terms(graph))
    for (const ValueId value : term.values) wanted[value] = term.optimised;
  std::vector<const Node*> losses;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const auto is_wanted = [&](ValueId value) { return wanted[value]; };
    if (std::none_of(node->outputs.begin(), node->outputs.end(), is_wanted)) continue;
    if (node->op->loss == Loss::loss) losses.push_back(&*node);
    for (const ValueId input : node->inputs) wanted[input] = true;
  }
  return losses;
}

ValueId predicted_value(const Plan& plan, const std::string& output) {
  std::vector<std::string> names;
  for (const auto& [name, value] : plan.outputs) names.push_back(name);
  if (!output.empty()) {
    if (const auto found = plan.outputs.find(output); found != plan.outputs.end()) return found->second;
    throw usage_error(fmt::format("the model names no output '{}'{}", output,
                                  names.empty() ? fmt::format(": add prun.output(\"{}\", x) to its build", output)
                                                : did_you_mean(output, names)));
  }
  const std::vector<const Node*> losses = losses_in(plan.graph);
  if (losses.size() == 1) return losses.front()->inputs[0];
  throw usage_error(fmt::format(
      "the model's loss has {}: name what to predict with prun.output(NAME, x) in its build, and --output NAME{}",
      counted(std::ssize(losses), "part"), names.empty() ? "" : fmt::format(" (here: {})", join(names, ", "))));
}

// Appends the op that writes the predicted value, to the call that computes it.
void add_prediction(CompileState& state, ValueId value) {
  Graph& graph = state.graph;
  const Plan& plan = state.plan;
  const auto makes = [&](const Node& node) { return std::ranges::count(node.outputs, value) > 0; };
  const auto made = std::find_if(graph.nodes.begin(), graph.nodes.end(), makes);
  const TensorType& type = graph.values[value].type;
  const int64_t samples = plan.data.global_batch / (state.sample_ranks() * plan.microbatches);
  if (made == graph.nodes.end())
    throw plan_error(fmt::format("'{}' is no result of the model", graph.values[value].name), graph.values[value].site);
  if (type.shape.empty() || type.shape[0] != samples)
    throw plan_error(fmt::format("a prediction has a row for each sample, and '{}' is {} for {}",
                                 graph.values[value].name, shape_text(type.shape), counted(samples, "sample")),
                     made->site);
  Node node = *made;
  node.op = &ops::write_rows;
  node.attrs = {};
  node.attrs.set("data_axes", state.data_axes);
  std::string once;  // axes whose ranks have the same rows
  for (const Axis& axis : plan.mesh.axes())
    if (!(plan.pipeline && plan.pipeline->axis == axis.name) && std::ranges::count(plan.batch_axes, axis.name) == 0)
      once += (once.empty() ? "" : ",") + axis.name;
  node.attrs.set("once", once);
  node.attrs.set("micro", int64_t{plan.microbatches});
  node.inputs = {value};
  node.outputs.clear();
  graph.nodes.insert(std::next(made), std::move(node));
}

}  // namespace

Plan forward_plan(Plan plan, const Forward& forward) {
  const char* command = forward.predicts ? "prun predict" : "prun eval";
  if (!plan.programs.empty())
    throw plan_error(fmt::format("a plan that lists its program op by op has no model for {}", command),
                     plan.mesh_site);
  if (forward.predicts) plan.evaluation = all_samples(plan);
  if (!plan.evaluation)
    throw plan_error("prun eval needs an evaluation, and this plan has none: add eval = prun.eval { every = 100 }",
                     plan.data.site);
  plan.report.reset();
  plan.keeping.reset();
  plan.initial_weights.reset();
  for (Value& value : plan.graph.values) value.frozen = value.frozen || value.kind == ValueKind::parameter;
  for (Strategy& strategy : plan.strategies)
    for (StrategyUnit& unit : strategy.units) unit.recompute = unit.offload = false;
  return plan;
}

void begin_forward(CompileState& state) {
  const Forward& forward = *state.options.forward;
  state.parameter_grad.assign(state.graph.values.size(), -1);
  if (forward.predicts) add_prediction(state, predicted_value(state.plan, forward.output));
}

}  // namespace prun
