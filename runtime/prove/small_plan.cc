// Which sizes a proof takes. What divides keeps dividing, and what does not does not.
#include "prove/small_plan.h"

#include <algorithm>

#include "ir/ops.h"
#include "prove/small_dims.h"
#include "prove/small_layers.h"

namespace prun {
namespace {

constexpr int kPipelineRanks = 4;      // first, second, one before the last, last
constexpr int kMicrobatchesAlone = 3;  // first, last, one between
constexpr int64_t kSamples = 2;        // of a microbatch on a rank

// Two ranks of an even number, three of an odd one.
int small_axis(int size) { return size <= 3 ? size : size % 2 == 0 ? 2 : 3; }

int64_t ranks_of_batch(const Plan& plan, const std::map<std::string, int>& axes) {
  int64_t ranks = 1;
  for (const std::string& axis : plan.batch_axes) ranks *= axes.at(axis);
  return ranks;
}

}  // namespace

std::vector<PlanSizes> small_sizes(const Plan& plan) {
  std::vector<PlanSizes> all;
  std::map<std::string, int> real;
  for (const Axis& axis : plan.mesh.axes()) real[axis.name] = axis.size;
  const int64_t samples = plan.data.batch / (ranks_of_batch(plan, real) * plan.microbatches);
  const auto add = [&](int pipeline_ranks, bool few_microbatches) {
    PlanSizes sizes;
    int ranks = 1, stages = 1;
    for (const auto& [axis, size] : real) {
      const bool pipeline = plan.pipeline && axis == plan.pipeline->axis;
      sizes.axes[axis] = pipeline ? std::min(size, pipeline_ranks) : small_axis(size);
      if (pipeline) stages = sizes.axes[axis] * plan.pipeline->chunks;
      ranks *= sizes.axes[axis];
    }
    if (ranks > kMostProvenRanks) return;
    const int few = plan.pipeline ? stages + 2 : kMicrobatchesAlone;
    sizes.microbatches = few_microbatches ? std::min(plan.microbatches, few) : plan.microbatches;
    sizes.batch = ranks_of_batch(plan, sizes.axes) * sizes.microbatches * std::min(samples, kSamples);
    all.push_back(std::move(sizes));
  };
  if (!plan.pipeline) {
    add(1, true);
    return all;
  }
  add(kPipelineRanks, true);
  add(2, true);
  add(kMostProvenRanks, true);
  add(kMostProvenRanks, false);
  return all;
}

PlanSizes alone(PlanSizes sizes) {
  for (auto& [axis, size] : sizes.axes) size = 1;
  sizes.alone = true;
  return sizes;
}

void shrink_model(const Plan& real, Plan& small, Plan& one) {
  drop_layers(small, one);
  shrink_dims(real, small, one);
}

void set_conditions(Plan& plan) {
  plan.steps = 1;
  plan.seed = 1;
  plan.report.reset();
  plan.data.kind = "random";
  plan.data.path.clear();
  plan.data.file_bytes = plan.data.skip_bytes = 0;
  plan.evaluation = Evaluation{1, 1, plan.data, plan.optimizer.site};
  plan.optimizer.lr = {.peak = std::max(plan.optimizer.lr.peak, 1e-3)};
  // Small enough to clip; steps of Adam that do not hide the gradient's size.
  if (plan.optimizer.clip > 0) plan.optimizer.clip = std::min(plan.optimizer.clip, 1e-3);
  if (plan.optimizer.numbers.has("eps")) plan.optimizer.numbers.set("eps", 1e-2);
  for (Value& value : plan.graph.values)
    if (value.kind == ValueKind::parameter && value.init.kind != "normal") value.init = {"uniform", 0.5};
  for (Node& node : plan.graph.nodes)
    if (node.op == &ops::route || node.op == &ops::dispatch) node.attrs.set("capacity", int64_t{0});
  for (Strategy& strategy : plan.strategies)
    for (StrategyUnit& unit : strategy.units)
      if (unit.sync_every > 0) unit.sync_every = 1;
}

}  // namespace prun
