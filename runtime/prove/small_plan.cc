// The sizes of a proof. Sizes keep their divisibility: divisible ones remain divisible, others remain indivisible.
#include "prove/small_plan.h"

#include <algorithm>
#include <cmath>

#include "compile/distributor.h"
#include "ir/ops.h"
#include "ir/state.h"
#include "prove/size_relations.h"

namespace prun {
namespace {

constexpr int kPipelineRanks = 4;      // first, second, one before the last, last
constexpr int kMicrobatchesAlone = 3;  // first, last, one between
constexpr int64_t kSamples = 2;        // per microbatch and rank

// Returns two ranks for an even size, three for an odd one; sizes up to three are unchanged.
int small_axis(int size) { return size <= 3 ? size : size % 2 == 0 ? 2 : 3; }

// Returns the bytes of all parameters, as counted for buckets.
double parameter_bytes(const Plan& plan) {
  double bytes = 0;
  for (const Value& value : plan.graph.values)
    if (value.kind == ValueKind::parameter) bytes += static_cast<double>(value.count() * dtype_bytes(value.type.dtype));
  return bytes;
}

// Returns the bytes of a rank's part of a parameter in the dtype of its update. place.cc compares them with a bound.
int64_t own_bytes(const Plan& plan, const Value& value) {
  const std::string layer = layer_of(plan.graph, value);
  const Shape& shape = value.type.shape;
  int64_t count = value.count();
  for (const Strategy& strategy : plan.strategies)
    for (const StrategyUnit& unit : strategy.units) {
      if (unit.unit_class != plan.graph.units[value.unit].unit_class) continue;
      for (const LayerPlacement& placement : unit.layers) {
        if (placement.layer != layer) continue;
        const bool bias = shape.size() == 1;  // a bias belongs to the outputs, the weight's last dim
        if (placement.dim >= (bias ? 2 : std::ssize(shape)) || (bias && placement.dim == 0)) continue;
        const int64_t extent = shape[bias ? 0 : placement.dim];
        count = count / extent * run_of(extent, plan.mesh.size(placement.axis), 1);
      }
    }
  return count * dtype_bytes(plan.param_dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32);
}

// Returns the bound under which the same parameters (by name) of a unit class are below it as with `least` in `real`.
// If no bound separates them, returns one that has parameters on both sides.
int64_t bound_between(const Plan& real, const Plan& small, const std::string& unit_class, int64_t least) {
  std::map<std::string, bool> below;
  for (const Value& value : real.graph.values)
    if (value.kind == ValueKind::parameter && real.graph.units[value.unit].unit_class == unit_class)
      below[value.name] = own_bytes(real, value) < least;
  int64_t lower = 0, upper = INT64_MAX;
  for (const Value& value : small.graph.values) {
    const auto known = below.find(value.name);
    if (value.kind != ValueKind::parameter || known == below.end()) continue;
    if (known->second)
      lower = std::max(lower, own_bytes(small, value));
    else
      upper = std::min(upper, own_bytes(small, value));
  }
  return upper == INT64_MAX ? lower + 1 : std::min(lower + 1, upper);
}

void shrink_bytes(const Plan& real, Plan& small) {
  const double share = parameter_bytes(small) / parameter_bytes(real);
  const auto scale = [&](int64_t& bytes) {
    if (bytes > 0) bytes = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(bytes) * share));
  };
  for (Strategy& strategy : small.strategies)
    for (StrategyUnit& unit : strategy.units) {
      scale(unit.offload_piece);
      if (unit.shard_least > 0) unit.shard_least = bound_between(real, small, unit.unit_class, unit.shard_least);
      for (Hook& hook : unit.hooks)
        for (HookAction& action : hook.actions) scale(action.bucket), scale(action.first);
    }
}

// Expert capacities as multiples of the even share, by node; they are independent of the sizes.
class Capacities {
 public:
  explicit Capacities(const Graph& graph) {
    for (const Node& node : graph.nodes) {
      const int64_t slots = node.attrs.integer("capacity");
      shares_.push_back(static_cast<double>(slots) / even_share(graph, node));
    }
  }

  // `all`: every expert has a slot for each token.
  void apply(Graph& graph, bool all) const {
    for (size_t n = 0; n < graph.nodes.size(); n++) {
      Node& node = graph.nodes[n];
      if (shares_[n] == 0) continue;
      const double slots = std::ceil(shares_[n] * even_share(graph, node) - 1e-6);
      const bool drops = !node.attrs.has("round");  // rounds drop nothing
      node.attrs.set("capacity",
                     all && drops ? 0 : std::clamp<int64_t>(static_cast<int64_t>(slots), 1, tokens(graph, node)));
    }
    infer_types(graph);
  }

 private:
  static int64_t tokens(const Graph& graph, const Node& node) {
    const Shape& shape = graph.values[node.inputs[0]].type.shape;
    return element_count(shape) / std::max<int64_t>(1, shape.empty() ? 1 : shape.back());
  }

  static double even_share(const Graph& graph, const Node& node) {
    if (node.op != &ops::route && node.op != &ops::dispatch) return 1;
    const Shape& logits = graph.values[node.inputs[0]].type.shape;
    const int64_t experts = node.op == &ops::route ? logits.back() : node.attrs.integer("experts");
    return static_cast<double>(tokens(graph, node)) / static_cast<double>(experts);
  }

  std::vector<double> shares_;
};

}  // namespace

bool splits_tokens(const Plan& plan) {
  for (const std::string& axis : plan.batch_axes)
    if (plan.mesh.size(axis) > 1) return true;
  for (const Strategy& strategy : plan.strategies)
    if (strategy.splits == Splits::tokens)
      for (const std::string& axis : strategy.axes)
        if (plan.mesh.size(axis) > 1) return true;
  return false;
}

int64_t batch_ranks(const Plan& plan, const std::map<std::string, int>& axes) {
  int64_t ranks = 1;
  for (const std::string& axis : plan.batch_axes) ranks *= axes.at(axis);
  return ranks;
}

std::vector<PlanSizes> small_sizes(const Plan& plan) {
  std::vector<PlanSizes> all;
  std::map<std::string, int> real;
  for (const Axis& axis : plan.mesh.axes()) real[axis.name] = axis.size;
  const int64_t samples = plan.data.global_batch / (batch_ranks(plan, real) * plan.microbatches);
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
    sizes.batch = batch_ranks(plan, sizes.axes) * sizes.microbatches * std::min(samples, kSamples);
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

void shrink_model(const Plan& real, Shrink shrink, Plan& small, const std::vector<Plan*>& others) {
  if (shrink != Shrink::nothing) drop_layers(small, others);
  share_layers(real, small);
  const Capacities capacities(small.graph);
  std::vector<Capacities> of_others;
  of_others.reserve(others.size());
  for (const Plan* other : others) of_others.emplace_back(other->graph);
  if (shrink == Shrink::dims) shrink_dims(real, small, others);
  const bool all = splits_tokens(real);
  capacities.apply(small.graph, all);
  for (size_t i = 0; i < others.size(); i++) of_others[i].apply(others[i]->graph, all);
  shrink_bytes(real, small);
}

void set_conditions(Plan& plan) {
  plan.steps = 1;
  plan.seed = 1;
  plan.report.reset();
  plan.data.kind = "random";
  plan.data.files.clear();
  plan.data.first = plan.data.count = 0;
  plan.data.part = false;
  plan.data.order = "random";
  plan.data.last = plan.data.feed = "";
  if (plan.data.document_end >= 0) plan.data.document_end = 0;  // a token id that small vocabularies have, too
  plan.evaluation = Evaluation{.every = 1, .batches = 1, .data = plan.data, .site = plan.optimizer.site};
  plan.optimizer.lr = {.last = std::max(plan.optimizer.lr.peak(), 1e-3)};
  // The clip bound is small enough to clip; the eps of Adam and Adafactor are large enough that an update depends on
  // the gradient's size.
  if (plan.optimizer.clip > 0) plan.optimizer.clip = std::min(plan.optimizer.clip, 1e-3);
  const auto bound = [](Optimizer& optimizer) {
    if (optimizer.numbers.has("eps")) optimizer.numbers.set("eps", 1e-2);
    if (optimizer.numbers.has("eps1")) optimizer.numbers.set("eps1", 1e-3);
  };
  bound(plan.optimizer);
  for (Optimizer& other : plan.optimizer.others) bound(other);
  for (Value& value : plan.graph.values)
    if (value.kind == ValueKind::parameter && !value.buffer && value.init.kind != "normal")  // a variance is positive
      value.init = {"uniform", 0.5};
  for (Strategy& strategy : plan.strategies)
    for (StrategyUnit& unit : strategy.units)
      if (unit.sync_every > 0 && !strategy.differs.empty()) unit.sync_every = 1;
}

}  // namespace prun
