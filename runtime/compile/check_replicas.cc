// --check-replicas: every K steps, ranks compare fingerprints of parameters, optimizer state and loss with their
// replicas, one axis at a time, because no other check detects that replicas have diverged.
//
// Tensors that the place pass has not split are replicas. Weights that a strategy lets drift are equal only right after
// averaging, so that the body's period is a multiple of the averaging period; their optimizer state is never equal.
// Tensors in host memory are not compared, nor are replicated parameters that share a shard with split parameters.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "compile/compile_state.h"
#include "compile/edge_builder.h"
#include "compile/factored_state.h"
#include "compile/ir_build.h"
#include "ir/ops.h"
#include "ir/split_axes.h"

namespace prun {
namespace {

using Axes = std::set<std::string>;

struct Same {
  TensorId tensor;
  std::string name;
  Axes axes;  // along which ranks hold replicas
};

Axes without(Axes axes, const Axes& others) {
  for (const std::string& other : others) axes.erase(other);
  return axes;
}

// Axes along which the strategies average the unit's weights between steps.
Axes drifting(const CompileState& state, UnitId unit) {
  Axes axes;
  for (const auto& [strategy, part] : state.strategies.of(state.graph.units[unit]).parts)
    for (const HookAction& action : part->sync) axes.insert(action.axis);
  return axes;
}

class Replicas {
 public:
  explicit Replicas(CompileState& state) : state_(state) {
    for (const Axis& axis : state.plan.mesh.axes())
      if (axis.size > 1 && !(state.plan.pipeline && state.plan.pipeline->axis == axis.name)) axes_.insert(axis.name);
  }

  // Returns whether ranks of this class or of another one may hold replicas.
  bool any_axis() const { return !axes_.empty(); }

  std::vector<Same> find() {
    for (UnitId unit : state_.graph.units.ids())
      if (state_.holds(unit)) add_unit(unit);
    Axes averaged;
    for (const std::string& axis : state_.loss_axes)
      if (axes_.contains(axis)) averaged.insert(axis);
    add(state_.loss_tensor, "loss", averaged);
    return std::move(same_);
  }

 private:
  // Parameters of the unit that are contiguous in the layout and have the same split; `begin` is the first element.
  struct Run {
    int64_t begin;
    Axes split;
    std::string name;  // "" if there are several parameters
  };

  std::vector<Run> runs_of(UnitId unit) const {
    const std::vector<ValueId>& parameters = state_.graph.units[unit].parameters;
    std::vector<Run> runs;
    for (size_t i = parameters.size(); i-- > 0;) {  // in the layout's order
      const Value& value = state_.graph.values[parameters[i]];
      const SplitAxes over(value.split_axis);
      Axes split;
      for (const std::string& axis : {over.part, over.split})
        if (!axis.empty()) split.insert(axis);
      if (!runs.empty() && runs.back().split == split)
        runs.back().name = "";
      else
        runs.push_back({state_.layouts[unit].start[i], split, value.name});
    }
    return runs;
  }

  // Means of rows and columns are equal on all ranks but those with other rows or columns.
  void add_factors(UnitId unit) {
    const UnitStorage& storage = state_.storage[unit];
    if (storage.factors.empty()) return;
    const FactoredUnit factored = factored_unit(state_, unit);
    for (const FactoredMean& mean : factored.listed) {
      const SplitAxes over(mean.value.split_axis);
      const Axes along = without(without(axes_, {over.part, over.split}), drifting(state_, unit));
      if (along.empty()) continue;
      add(add_view(state_.program, mean.value.name + ".alike", storage.factors[mean.vector], mean.start,
                   {mean.value.count()}),
          mean.value.name, along);
    }
  }

  void add_unit(UnitId unit) {
    const UnitStorage& storage = state_.storage[unit];
    add_factors(unit);
    const TensorId weights = storage.master_offloaded ? storage.compute : storage.master;
    Axes alike = axes_;
    for (const std::string& axis : storage.axes()) alike.erase(axis);
    const Axes drift = drifting(state_, unit);
    std::vector<Run> runs = runs_of(unit);
    if (storage.sharded)
      for (const Run& run : runs) alike = without(alike, run.split);
    if (storage.sharded || runs.size() == 1) {
      if (!storage.sharded) alike = without(alike, runs[0].split);
      add(weights, "", alike);
      for (const TensorId slot : storage.optimizer) add(slot, "", without(alike, drift));
      return;
    }
    for (size_t r = 0; r < runs.size(); ++r) {
      const int64_t begin = runs[r].begin, end = r + 1 < runs.size() ? runs[r + 1].begin : storage.shard;
      const Axes axes = without(alike, runs[r].split);
      const auto part = [&](TensorId of, const Axes& along) {
        if (along.empty() || is_in_host_memory(of)) return;
        const std::string of_unit = state_.program.tensors[of].name;
        const std::string name = runs[r].name.empty() ? of_unit : of_unit + " (" + runs[r].name + ")";
        add(add_view(state_.program, of_unit + ".alike", of, begin, {end - begin}), name, along);
      };
      part(weights, axes);
      for (const TensorId slot : storage.optimizer) part(slot, without(axes, drift));
    }
  }

  bool is_in_host_memory(TensorId tensor) const {
    return state_.program.buffers[state_.program.tensors[tensor].buffer].space == Space::host;
  }

  void add(TensorId tensor, std::string name, const Axes& axes) {
    if (axes.empty() || is_in_host_memory(tensor)) return;
    if (name.empty()) name = state_.program.tensors[tensor].name;
    same_.push_back({tensor, std::move(name), axes});
  }

  CompileState& state_;
  Axes axes_;
  std::vector<Same> same_;
};

// Returns the body's period in steps: a multiple of the averaging period, if any; 0 = the body would never run.
int64_t rhythm(const CompileState& state) {
  int64_t every = state.options.check_replicas;
  for (const Body& body : state.program.bodies)
    if (body.name == "synchronization") every = round_up(every, body.when.every);
  return every <= state.program.schedule.steps ? every : 0;
}

}  // namespace

void check_replicas(CompileState& state) {
  const int64_t every = rhythm(state);
  if (every == 0) return;
  Replicas replicas(state);
  const std::vector<Same> same = replicas.find();
  // All stages of a pipeline have the same bodies, so a stage without replicas has an empty body.
  if (same.empty() && !(state.plan.pipeline && replicas.any_axis())) return;
  Program& program = state.program;
  program.bodies.push_back({"replicas", {every}, {}, {}, {}});
  EdgeBuilder edges(program, program.bodies.back());
  edges.stream("compute");
  if (same.empty()) return;
  const Site& site = state.plan.optimizer.site;
  const int64_t n = std::ssize(same);
  std::vector<TensorId> tensors;
  Axes axes;
  for (const Same& one : same) {
    tensors.push_back(one.tensor);
    axes.insert(one.axes.begin(), one.axes.end());
  }
  const TensorId prints = add_tensor(program, "prints", Role::data, {Dtype::i64, {n}}, false, site);
  edges.append(0, make_op(ops::fingerprint, std::move(tensors), {prints}, Phase::step, site));
  for (const std::string& axis : axes) {
    const TensorId all =
        add_tensor(program, "prints." + axis, Role::data, {Dtype::i64, {n * state.plan.mesh.size(axis)}}, false, site);
    Op gather = make_op(ops::all_gather, {prints}, {all}, Phase::step, site);
    gather.axis = axis;
    edges.communicate("", std::move(gather));
    nlohmann::json names = nlohmann::json::array();
    for (const Same& one : same) names.push_back(one.axes.contains(axis) ? one.name : "");
    Op require = make_op(ops::require_same, {all}, {}, Phase::step, site);
    require.attrs.set("axis", axis);
    require.attrs.set("tensors", names.dump());
    edges.append(0, std::move(require));
  }
}

}  // namespace prun
