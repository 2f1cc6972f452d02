// Describes the state in a checkpoint, and builds the body that takes one: it copies the state to host memory, which is
// written to disk while the next steps run. A run that resumes reads its initial state into the same memory.
//
// Surprising fact: weights that drift apart between averages, and their optimizer state, exist once per rank, and a
// checkpoint holds all of them.
#include <fmt/format.h>

#include "compile/compile_state.h"
#include "compile/edge_builder.h"
#include "compile/factored_state.h"
#include "compile/ir_build.h"
#include "ir/ops.h"
#include "ir/split_axes.h"

namespace prun {
namespace {

bool checkpoints(const CompileState& state) { return state.options.checkpoint_every > 0; }

// Returns whether checkpoints omit the unit's parameters because the base of the adapters has them.
bool is_of_base(const CompileState& state, UnitId unit) {
  return state.is_frozen(unit) && !state.holds_buffers(unit) && state.program.adapters.has_base();
}

// Describes a parameter of the unit, or means of one (`is_mean`), which no axis shards. `begin`: its first element in
// the unit's vector.
StateTensor state_tensor(const CompileState& state, UnitId unit, const Value& value, int64_t begin, bool is_mean) {
  const UnitStorage& storage = state.storage[unit];
  const ClassStrategies& strategies = state.strategies.of(state.graph.units[unit]);
  StateTensor of;
  of.name = value.name;
  of.begin = begin;
  of.shape = value.whole.empty() ? value.type.shape : value.whole;
  of.split_axis = value.split_axis;
  of.grain = value.grain;
  if (!value.whole.empty()) {
    of.split_dim = value.split_dim;
    const bool fused = value.split_dim + 1 == std::ssize(value.whole) && !value.blocks.empty();
    of.blocks = fused ? value.blocks : std::vector<int64_t>{value.whole[value.split_dim]};
  }
  if (storage.sharded && !is_mean) of.shard_axis = storage.axis;
  for (const Axis& axis : state.plan.mesh.axes()) {
    const bool stages = state.plan.pipeline && state.plan.pipeline->axis == axis.name;
    if (axis.size == 1 || stages || SplitAxes(value.split_axis).has(axis.name) ||
        (!is_mean && storage.is_sharded_over(axis.name)))
      continue;
    (strategies.synchronizes_over(axis.name) ? of.drift : of.replicated).push_back(axis.name);
  }
  of.copy = !state.graph.units[unit].twin_of.none();
  of.frozen = value.frozen && !value.buffer;
  const ParameterGroup settings = state.plan.optimizer.settings_of(value);
  of.lr_factor = settings.lr;
  of.weight_decay = settings.weight_decay;
  return of;
}

std::vector<StateTensor> parameters_of(const CompileState& state, UnitId unit) {
  std::vector<StateTensor> all;
  const std::vector<ValueId>& parameters = state.graph.units[unit].parameters;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const Value& value = state.graph.values[parameters[p]];
    all.push_back(state_tensor(state, unit, value, state.layouts[unit].start[p], false));
    all.back().updated = value.buffer && is_updated(state.graph, parameters[p]);
  }
  return all;
}

TensorId stage(CompileState& state, TensorId tensor, const Site& site) {
  const Tensor of = state.program.tensors[tensor];
  const TensorId staged = add_tensor(state.program, of.name + ".snapshot", Role::snapshot, of.type(), true, site);
  state.program.buffers[state.program.tensors[staged].buffer].space = Space::host;
  return staged;
}

}  // namespace

void describe_state(CompileState& state) {
  const bool staged = checkpoints(state);
  for (const UnitId unit : state.graph.units.ids()) {
    if (!state.holds(unit)) continue;
    UnitStorage& storage = state.storage[unit];
    const bool kept = staged && !is_of_base(state, unit);
    const auto add = [&](StateTensor of, TensorId tensor, const std::string& prefix) {
      of.name.insert(0, prefix);
      of.tensor = tensor;
      if (kept) of.staged = storage.staged.back();
      state.program.state.push_back(std::move(of));
    };
    const auto keep = [&](TensorId tensor) {
      if (kept) storage.staged.push_back(stage(state, tensor, state.plan.optimizer.site));
    };
    std::vector<std::string> prefixes = {""};
    for (const std::string& slot : optimizer_slots(state.optimizer_of(unit), state.plan.optimizer.ema > 0))
      prefixes.push_back(kOptimizerState + slot + ".");
    const std::vector<StateTensor> parameters = parameters_of(state, unit);
    for (size_t t = 0; t <= storage.optimizer.size(); ++t) {
      const TensorId tensor = t == 0 ? storage.master : storage.optimizer[t - 1];
      keep(tensor);
      for (const StateTensor& parameter : parameters) add(parameter, tensor, prefixes[t]);
    }
    if (storage.factors.empty()) continue;
    const FactoredUnit factored = factored_unit(state, unit);
    for (size_t v = 0; v < storage.factors.size(); ++v) {
      keep(storage.factors[v]);
      for (const FactoredMean& mean : factored.listed)
        if (mean.vector == v)
          add(state_tensor(state, unit, mean.value, mean.start, true), storage.factors[v],
              fmt::format("{}{}.", kOptimizerState, state.optimizer_of(unit).name));
    }
  }
}

// Loads offloaded state to the device first, because an op copies between host and device only.
void checkpoint(CompileState& state) {
  if (!checkpoints(state)) return;
  const Site& site = state.plan.optimizer.site;
  state.program.bodies.push_back({"checkpoint", {state.options.checkpoint_every, 1, state.plan.steps}, {}, {}, {}});
  EdgeBuilder edges(state.program, state.program.bodies.back());
  edges.stream("compute");
  edges.append(0, make_op(ops::await_checkpoint, {}, {}, Phase::step, site));
  std::vector<TensorId> all;
  for (const UnitId unit : state.graph.units.ids()) {
    if (!state.holds(unit) || is_of_base(state, unit)) continue;
    const UnitStorage& storage = state.storage[unit];
    const std::vector<TensorId> tensors = storage.kept();
    for (size_t t = 0; t < tensors.size(); ++t) {
      const auto add = [&](const OpDef& def, TensorId from, TensorId to) {
        Op op = make_op(def, {from}, {to}, Phase::step, site);
        op.unit = state.unit_name(unit);
        edges.append(0, std::move(op));
      };
      TensorId from = tensors[t];
      if (t == 0 ? storage.master_offloaded : storage.offload != nullptr) {
        const Tensor away = state.program.tensors[from];
        from = add_tensor(state.program, away.name + ".loaded", Role::workspace, away.type(), false, site);
        add(ops::load, tensors[t], from);
      }
      add(ops::store, from, storage.staged[t]);
      all.push_back(storage.staged[t]);
    }
  }
  edges.append(0, make_op(ops::save_state, all, {}, Phase::step, site));
}

}  // namespace prun
