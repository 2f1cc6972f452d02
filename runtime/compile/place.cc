// Places the parameters, gradients and optimizer state of each unit, and initializes them.
//
// A sharded unit keeps 1/N of one padded flat vector. All other units share one flat vector of parameters and one of
// gradients, in the order in which backward completes gradients, so that a bucket of any size is one contiguous view.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "compile/compile_state.h"
#include "compile/factored_state.h"
#include "compile/ir_build.h"
#include "compile/matrix_split.h"
#include "ir/ops.h"
#include "ir/split_axes.h"

namespace prun {
namespace {

int64_t line_elements(Dtype dtype) { return kAlignBytes / dtype_bytes(dtype); }

UnitLayout layout_of(const CompileState& state, const Unit& unit) {
  UnitLayout layout;
  layout.start.assign(unit.parameters.size(), 0);
  // A line of the narrowest dtype involved (bf16) aligns tensors of every dtype.
  int64_t line = line_elements(Dtype::bf16), next = 0;
  for (size_t i = unit.parameters.size(); i-- > 0;) {
    layout.start[i] = next;
    layout.elements = next + element_count(state.graph.values[unit.parameters[i]].type.shape);
    next = round_up(layout.elements, line);
  }
  layout.padded = next;
  return layout;
}

}  // namespace

std::vector<std::string> optimizer_slots(const Optimizer& optimizer, bool ema) {
  std::vector<std::string> slots;
  const OptimizerTraits& traits = *optimizer.op->optimizer;
  if (traits.slots_if.empty() || optimizer.numbers.number(std::string(traits.slots_if)) != 0)
    for (const std::string& slot : optimizer.slots) slots.push_back(fmt::format("{}.{}", optimizer.name, slot));
  if (ema) slots.emplace_back(ops::ema.name);
  return slots;
}

namespace {

// Describes for init_params and load_state which part of each parameter the rank holds; no attributes if all are whole.
void describe_splits(const CompileState& state, const std::vector<const Value*>& parameters, Attrs& attrs) {
  std::vector<int64_t> outer, slice, block_count, blocks, grains, dims;
  std::string axes, parts;
  bool any = false, padded = false, one_row = false, in_parts = false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Value& value = *parameters[i];
    const SplitAxes split(value.split_axis);
    axes += (i > 0 ? "," : "") + split.split;
    parts += (i > 0 ? "," : "") + split.part;
    in_parts = in_parts || !split.part.empty();
    grains.push_back(value.grain);
    dims.push_back(value.whole.empty() ? 0 : value.split_dim);
    padded = padded || value.grain > 1;
    if (value.whole.empty()) {
      outer.push_back(0), slice.push_back(0), block_count.push_back(0);
      continue;
    }
    any = true;
    Shape part = value.whole;
    if (!split.part.empty()) part[0] /= state.plan.mesh.size(split.part);
    auto dim = part.begin() + value.split_dim;
    outer.push_back(element_count(Shape(part.begin(), dim)));
    one_row = one_row || (dims.back() > 0 && outer.back() == 1) || dims.back() > 1 || in_parts;
    slice.push_back(element_count(Shape(dim + 1, part.end())));
    bool fused = dim + 1 == part.end() && !value.blocks.empty();
    std::vector<int64_t> extents = fused ? value.blocks : std::vector<int64_t>{*dim};
    block_count.push_back(static_cast<int64_t>(extents.size()));
    for (int64_t extent : extents) blocks.push_back(extent * slice.back());
  }
  if (!any) return;
  attrs.set("split_outer", outer);
  attrs.set("split_slice", slice);
  attrs.set("split_block_count", block_count);
  attrs.set("split_blocks", blocks);
  attrs.set("split_axis", axes);
  if (in_parts) attrs.set("split_parts", parts);
  if (padded) attrs.set("split_grain", grains);
  if (one_row) attrs.set("split_dim", dims);
}

// Returns the op that writes the initial values of unit `u`, flat, or of this rank's shard.
Op init_unit(const CompileState& state, UnitId u, TensorId tensor) {
  const Unit& unit = state.graph.units[u];
  std::vector<int64_t> starts, counts, kinds, keys;
  std::vector<double> scales;
  std::vector<const Value*> values;
  static const std::vector<std::string> kKinds = {"zeros", "ones", "constant", "normal", "uniform"};
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const Value& value = state.graph.values[unit.parameters[i]];
    starts.push_back(state.layouts[u].start[i]);
    counts.push_back(element_count(value.type.shape));
    kinds.push_back(std::find(kKinds.begin(), kKinds.end(), value.init.kind) - kKinds.begin());
    if (kinds.back() == std::ssize(kKinds))
      throw plan_error(fmt::format("initial values '{}' are not known", value.init.kind), value.site);
    scales.push_back(value.init.scale);
    keys.push_back(value.key);
    values.push_back(&value);
  }
  Op op = make_op(ops::init_params, {}, {tensor}, Phase::init, state.graph.values[unit.parameters.front()].site);
  op.attrs.set("starts", starts);
  op.attrs.set("counts", counts);
  op.attrs.set("kinds", kinds);
  op.attrs.set("keys", keys);
  op.attrs.set("scales", scales);
  describe_splits(state, values, op.attrs);
  const UnitStorage& storage = state.storage[u];
  op.attrs.set("axis", storage.sharded ? storage.axis : std::string());
  op.unit = unit.name;
  return op;
}

// Returns the ops that set the means of the unit's factored optimizer to zero, or to those of a checkpoint.
std::vector<Op> init_factors(const CompileState& state, UnitId unit, bool resumes) {
  const UnitStorage& storage = state.storage[unit];
  if (storage.factors.empty()) return {};
  const FactoredUnit factored = factored_unit(state, unit);
  std::vector<Op> made;
  for (size_t v = 0; v < storage.factors.size(); ++v) {
    if (!resumes) {
      made.push_back(make_zero(storage.factors[v], Phase::init, state.plan.optimizer.site));
      continue;
    }
    Op op = make_op(ops::load_state, {}, {storage.factors[v]}, Phase::init, state.plan.optimizer.site);
    std::vector<int64_t> starts, counts;
    std::vector<const Value*> values;
    for (const FactoredMean& mean : factored.listed) {
      if (mean.vector != v) continue;
      starts.push_back(mean.start), counts.push_back(mean.value.count()), values.push_back(&mean.value);
    }
    op.attrs.set("starts", starts), op.attrs.set("counts", counts);
    describe_splits(state, values, op.attrs);
    op.attrs.set("state", int64_t{storage.factors[v].index()});
    op.unit = state.unit_name(unit);
    made.push_back(std::move(op));
  }
  return made;
}

bool on_this_rank(const CompileState& state, UnitId unit) {
  const Unit& u = state.graph.units[unit];
  UnitId called = u.part_of >= 0 ? u.part_of : unit;
  for (const Call& call : state.graph.calls)
    if (call.unit == called && rank_of_stage(state.plan, call.stage) == state.pipeline_rank) return true;
  return false;
}

// Returns a name of the optimizer with this number that no other has: "adamw", "adamw2".
std::string part_name(const Optimizer& optimizer, int number) {
  const std::string& name = optimizer.others[number - 1].name;
  const auto alike = std::count_if(optimizer.others.begin(), optimizer.others.begin() + number,
                                   [&](const Optimizer& other) { return other.name == name; });
  return alike > 1 ? fmt::format("{}{}", name, alike) : name;
}

// Returns how the ranks divide the parameter's matrices if its optimizer updates whole matrices: "", ".tp", ".by_ep",
// ".by_ep.tp".
std::string parts_of_matrices(const CompileState& state, const Value& value) {
  if (value.frozen || state.plan.optimizer.of(value).op->optimizer->direction == nullptr) return "";
  MatrixSplit split = matrix_split(value);
  std::ranges::replace(split.apart, ',', '_');
  return (split.apart.empty() ? "" : ".by_" + split.apart) + (split.joined.empty() ? "" : "." + split.joined);
}

// Moves parameters that need other storage than the rest of their unit to a unit without calls: those too small to
// shard, those split over an axis that divides the data (experts), frozen ones, buffers and those of another optimizer.
void separate_parts(CompileState& state) {
  Graph& graph = state.graph;
  // frozen, buffer, whole, by experts, optimizer, parts of matrices
  using Kept = std::tuple<bool, bool, bool, bool, int, std::string>;
  std::map<std::pair<UnitId, Kept>, UnitId> parts;
  for (int u = 0, units = std::ssize(graph.units); u < units; ++u) {
    const StrategyUnit* sharding = state.strategies.of(graph.units[u]).sharding();
    std::map<Kept, std::vector<ValueId>> groups;
    for (ValueId parameter : graph.units[u].parameters) {
      const Value& value = graph.values[parameter];
      bool small =
          sharding && element_count(value.type.shape) * dtype_bytes(state.master_dtype()) < sharding->shard_least;
      const std::string axis = SplitAxes(value.split_axis).outer();
      const bool experts = !axis.empty() && state.strategies.splits_data(axis);
      const int optimizer = value.frozen ? 0 : state.plan.optimizer.settings_of(value).optimizer;
      groups[{value.frozen, value.buffer, small && !value.buffer, experts, optimizer, parts_of_matrices(state, value)}]
          .push_back(parameter);
    }
    if (groups.size() < 2) continue;
    auto keep = groups.begin();
    graph.units[u].parameters = keep->second;
    for (auto group = std::next(keep); group != groups.end(); ++group) {
      Unit part = graph.units[u];
      const auto& [frozen, buffer, small, experts, optimizer, matrices] = group->first;
      part.name += std::string(buffer   ? ".buffers"
                               : frozen ? ".frozen"
                                        : "") +
                   (experts ? ".experts" : "") + (small ? ".small" : "");
      if (optimizer > 0) part.name += "." + part_name(state.plan.optimizer, optimizer);
      part.name += matrices;
      if (part.part_of.none()) part.part_of = u;
      parts[{u, group->first}] = graph.units.next();
      if (!part.twin_of.none()) part.twin_of = parts.at({part.twin_of, group->first});  // twins separate alike
      part.parameters = group->second;
      for (ValueId parameter : part.parameters) graph.values[parameter].unit = std::ssize(graph.units);
      graph.units.push_back(std::move(part));
    }
  }
}

// Returns whether the strategy keeps the gathered parameters for the whole step. If several axes shard them, it may
// keep what one of them has gathered, which is a part.
bool keeps_gathered(const StrategyUnit& unit) {
  if (unit.shard_axis.find(',') != std::string::npos) return false;
  return std::ranges::any_of(unit.hooks, [](const Hook& hook) {
    return std::ranges::any_of(hook.actions, [](const HookAction& action) { return action.keep; });
  });
}

// Returns the strategy's unit that shards `unit`; null = none, a small part, buffers, or frozen parameters that every
// rank would keep gathered: they never change, so that ranks store them whole instead.
const StrategyUnit* sharding_of_unit(const CompileState& state, const Unit& unit) {
  const StrategyUnit* sharding = state.strategies.of(unit).sharding();
  if (!sharding || unit.parameters.empty()) return sharding;
  const Value& first = state.graph.values[unit.parameters.front()];
  if (first.buffer || (first.frozen && keeps_gathered(*sharding))) return nullptr;
  int64_t largest = 0;
  for (ValueId parameter : unit.parameters)
    largest = std::max(largest, element_count(state.graph.values[parameter].type.shape));
  return largest * dtype_bytes(state.master_dtype()) < sharding->shard_least ? nullptr : sharding;
}

// Offloads masters together with optimizer state if only the optimizer reads them: parameters have another dtype, and
// no strategy averages them between steps. Units that are not sharded share vectors, so that all or none of these are
// offloaded.
struct Offload {
  bool shared_state = false, shared_master = false;  // of the units that are not sharded
};

Offload place_offloaded(CompileState& state) {
  const bool low = state.plan.param_dtype != state.master_dtype();
  std::string kept;  // a unit whose state is not offloaded
  Offload offload;
  bool synced = false;
  for (size_t u = 0; u < state.graph.units.size(); ++u) {
    const Unit& unit = state.graph.units[u];
    UnitStorage& storage = state.storage[u];
    if (!state.trains(u)) continue;
    storage.offload = state.strategies.of(unit).offload;
    const auto drifts = [&](const Axis& axis) {
      return axis.size > 1 && state.strategies.of(unit).synchronizes_over(axis.name);
    };
    if (state.plan.optimizer.ema > 0 && std::ranges::any_of(state.plan.mesh.axes(), drifts))
      throw plan_error(fmt::format("the optimizer keeps a running average of weights (ema), and the strategies let the "
                                   "ranks' weights of '{}' differ between steps: take one of the two out",
                                   unit.name),
                       state.plan.optimizer.site);
    const OptimizerTraits& traits = *state.optimizer_of(u).op->optimizer;
    if (storage.offload && (traits.direction != nullptr || traits.factored))
      throw plan_error(
          fmt::format("the state of prun.{} cannot be offloaded{}: remove offload = \"optimizer\" from the "
                      "strategy, or give '{}' another optimizer",
                      state.optimizer_of(u).name, traits.factored ? "" : ", because its updates need whole matrices",
                      unit.name),
          state.optimizer_of(u).site);
    if (storage.offload && !low && optimizer_slots(state.optimizer_of(u), state.plan.optimizer.ema > 0).empty())
      throw plan_error("there is nothing to offload: sgd without momentum keeps no state from step to step",
                       state.plan.optimizer.site);
    synced = synced || (!storage.sharded && state.strategies.of(unit).synchronizes);
    if (storage.sharded) {
      storage.master_offloaded = storage.offload && low && !state.strategies.of(unit).synchronizes;
      continue;
    }
    if (storage.offload) offload.shared_state = true;
    if (!storage.offload) kept = unit.name;
  }
  offload.shared_master = offload.shared_state && low && !synced;
  for (size_t u = 0; u < state.graph.units.size(); ++u) {
    UnitStorage& storage = state.storage[u];
    if (storage.sharded || !storage.offload) continue;
    if (!kept.empty())
      throw plan_error(fmt::format("the optimizer state of '{}' is offloaded and that of '{}' is not, and neither is "
                                   "sharded: such units are stored in one vector, so offload all of them or none",
                                   state.graph.units[u].name, kept),
                       storage.offload->offload_site);
    storage.master_offloaded = offload.shared_master;
  }
  return offload;
}

TensorId add_state(Program& program, const std::string& name, Role role, TensorType type, Space space,
                   const Site& site) {
  const TensorId tensor = add_tensor(program, name, role, std::move(type), true, site);
  program.buffers[program.tensors[tensor].buffer].space = space;
  return tensor;
}

// Returns the names of the state of all optimizers of the plan, each once.
std::vector<std::string> all_slots(const Optimizer& optimizer) {
  std::vector<std::string> slots = optimizer_slots(optimizer, false);
  for (const Optimizer& other : optimizer.others)
    for (const std::string& slot : optimizer_slots(other, false))
      if (std::ranges::find(slots, slot) == slots.end()) slots.push_back(slot);
  if (optimizer.ema > 0) slots.emplace_back(ops::ema.name);
  return slots;
}

// Returns the units in the order in which backward completes their gradients. The parts of a unit with several
// optimizers follow it, so that their gradients are neighbors in a bucket.
std::vector<UnitId> order_of_gradients(const Graph& graph, bool parts_follow) {
  std::vector<UnitId> order;
  for (size_t u = graph.units.size(); u-- > 0;) {
    if (!parts_follow) order.push_back(u);
    if (!parts_follow || !graph.units[u].part_of.none()) continue;
    order.push_back(u);
    for (const UnitId part : graph.units.ids())
      if (graph.units[part].part_of == UnitId(u)) order.push_back(part);
  }
  return order;
}

// Returns the axes that shard the unit: those of the strategy except one that splits its parameters, which are experts.
std::string axes_of_shards(const Graph& graph, UnitId unit, const StrategyUnit& sharding) {
  const std::vector<ValueId>& parameters = graph.units[unit].parameters;
  const SplitAxes apart(parameters.empty() ? "" : graph.values[parameters.front()].split_axis);
  std::string axes;
  for (const std::string& axis : split(sharding.shard_axis, ','))
    if (!apart.has(axis)) axes += (axes.empty() ? "" : ",") + axis;
  if (axes != sharding.shard_axis && sharding.shard_axis.find(',') != std::string::npos)
    throw plan_error(
        fmt::format("'{}' is sharded over '{}' together, and one of these axes splits its experts: give the "
                    "experts an axis of their own, or shard over one axis",
                    graph.units[unit].name, fmt::join(split(sharding.shard_axis, ','), "' and '")),
        sharding.shard_site);
  return axes;
}

// Throws plan_error if a strategy averages weights between steps over an axis that has another strategy's experts.
void require_same_experts(const CompileState& state, UnitId unit) {
  const auto shared = [&](const std::string& axis) {
    return std::ranges::any_of(state.plan.strategies,
                               [&](const Strategy& other) { return std::ranges::count(other.shared, axis) > 0; });
  };
  for (const ValueId parameter : state.graph.units[unit].parameters) {
    const Value& value = state.graph.values[parameter];
    const SplitAxes apart(value.split_axis);
    for (const ClassStrategies::Part& part : state.strategies.of(state.graph.units[unit]).parts)
      for (const HookAction& average : part.unit->sync)
        if (apart.has(average.axis) && shared(average.axis) && state.plan.mesh.size(average.axis) > 1)
          throw plan_error(
              fmt::format("{} averages '{}' over '{}' between steps, and this axis splits its experts: give "
                          "the experts another axis",
                          part.strategy->name, value.name, average.axis),
              part.strategy->site);
  }
}

// Sets which units this rank stores, and the elements of each and of its shard.
void lay_out_units(CompileState& state) {
  const Graph& graph = state.graph;
  state.storage.resize(graph.units.size());
  for (const UnitId u : graph.units.ids()) {
    UnitLayout layout = layout_of(state, graph.units[u]);
    UnitStorage& storage = state.storage[u];
    storage.here = on_this_rank(state, u);
    require_same_experts(state, u);
    const StrategyUnit* sharding = sharding_of_unit(state, graph.units[u]);
    const std::string axes = sharding != nullptr ? axes_of_shards(graph, u, *sharding) : "";
    if (!axes.empty()) {
      storage.sharded = true;
      storage.axis = axes;
      int64_t ranks = state.plan.mesh.size(storage.axis);
      storage.shard = round_up((layout.elements + ranks - 1) / ranks, line_elements(Dtype::bf16));
      layout.padded = storage.shard * ranks;
    } else {
      storage.shard = layout.padded;
    }
    state.layouts.push_back(std::move(layout));
  }
}

void place_units(CompileState& state) {
  Program& program = state.program;
  const Graph& graph = state.graph;
  int64_t flat = 0, flat_frozen = 0, flat_buffers = 0;
  lay_out_units(state);
  std::map<std::string, int64_t> slot_sizes;           // elements of the flat vector of a name of optimizer state
  std::map<UnitId, std::vector<int64_t>> slot_starts;  // first elements of a unit's state in these vectors
  const auto slots_of = [&](UnitId u) { return optimizer_slots(state.optimizer_of(u), state.plan.optimizer.ema > 0); };
  for (const UnitId u : order_of_gradients(graph, !state.plan.optimizer.others.empty())) {
    if (state.storage[u].sharded || !state.storage[u].here) continue;
    int64_t& next = state.holds_buffers(u) ? flat_buffers : state.is_frozen(u) ? flat_frozen : flat;
    state.storage[u].bucket_start = next;
    next += state.layouts[u].padded;
    if (state.is_frozen(u)) continue;
    for (const std::string& slot : slots_of(u)) {
      slot_starts[u].push_back(slot_sizes[slot]);
      slot_sizes[slot] += state.layouts[u].padded;
    }
  }
  const bool trains = !state.options.generation;
  Dtype master = state.master_dtype();
  Site site = state.plan.optimizer.site;
  const Offload offload = place_offloaded(state);
  const auto space = [](bool offloaded) { return offloaded ? Space::host : Space::device; };
  TensorId params, grads, low, frozen, buffers;
  std::map<std::string, TensorId> slots;
  // Only the optimizer needs the master's dtype.
  if (flat_frozen > 0)
    frozen = add_tensor(program, "frozen", Role::frozen, {state.plan.param_dtype, {flat_frozen}}, true, site);
  if (flat_buffers > 0) buffers = add_tensor(program, "buffers", Role::buffer, {master, {flat_buffers}}, true, site);
  if (flat > 0) {
    params = state.flat_params =
        add_state(program, "params", Role::param, {master, {flat}}, space(offload.shared_master), site);
    if (state.plan.param_dtype != master)
      low = add_tensor(program, "params." + std::string(dtype_name(state.plan.param_dtype)), Role::param,
                       {state.plan.param_dtype, {flat}}, true, site);
    if (trains) grads = state.flat_grads = add_tensor(program, "grads", Role::grad, {master, {flat}}, true, site);
    for (const std::string& slot : all_slots(state.plan.optimizer))
      if (const auto size = slot_sizes.find(slot); size != slot_sizes.end() && size->second > 0)
        slots[slot] =
            add_state(program, slot, Role::optimizer, {master, {size->second}}, space(offload.shared_state), site);
  }
  for (size_t u = 0; u < graph.units.size(); ++u) {
    UnitStorage& storage = state.storage[u];
    if (!storage.here || graph.units[u].parameters.empty()) continue;
    const std::string& name = graph.units[u].name;
    const bool is_frozen = state.is_frozen(u);
    Shape shape = {storage.shard};
    auto own = [&](const std::string& what, Role role, bool offloaded = false) {
      const Dtype dtype = is_frozen ? state.plan.param_dtype : master;
      return add_state(program, fmt::format("{}.{}", name, what), role, {dtype, shape}, space(offloaded), site);
    };
    auto view = [&](const std::string& what, TensorId of) {
      return add_view(program, fmt::format("{}.{}", name, what), of, storage.bucket_start, shape);
    };
    storage.master = storage.sharded ? own("shard", is_frozen ? Role::frozen : Role::param, storage.master_offloaded)
                                     : view("params", state.holds_buffers(u) ? buffers
                                                      : is_frozen            ? frozen
                                                                             : params);
    if (is_frozen) continue;
    if (trains) storage.grad = storage.sharded ? own("grad_shard", Role::grad) : view("grads", grads);
    const StrategyUnit* sharding = storage.sharded ? state.strategies.of(graph.units[u]).sharding() : nullptr;
    const bool alone = storage.sharded && state.plan.mesh.size(storage.axis) == 1;
    if (alone)
      storage.whole_grad = storage.grad;  // none in a generation
    else if (sharding && sharding->accumulate)
      storage.whole_grad =
          add_tensor(program, name + ".grads", Role::grad, {master, {state.layouts[u].padded}}, true, site);
    if (!storage.sharded && low >= 0) storage.compute = view("params.low", low);
    if (storage.sharded && (storage.master_offloaded || (alone && state.plan.param_dtype != master)))
      storage.compute = add_tensor(program, fmt::format("{}.shard.{}", name, dtype_name(state.plan.param_dtype)),
                                   Role::param, {state.plan.param_dtype, shape}, true, site);
    const std::vector<std::string> kinds = slots_of(u);
    for (size_t i = 0; i < kinds.size(); ++i)
      storage.optimizer.push_back(storage.sharded ? own(kinds[i], Role::optimizer, storage.offload != nullptr)
                                                  : add_view(program, fmt::format("{}.{}", name, kinds[i]),
                                                             slots.at(kinds[i]), slot_starts.at(u)[i], shape));
  }
}

void initialise(CompileState& state) {
  Stream stream;
  stream.name = "compute";
  for (UnitId unit : state.graph.units.ids()) {
    const UnitStorage& storage = state.storage[unit];
    if (!state.holds(unit)) continue;
    // Offloaded state is initialized in the gradient's memory, which has the same size and type and is still unused.
    const TensorId initial = storage.master_offloaded ? storage.grad : storage.master;
    const auto store = [&](TensorId to) {
      stream.ops.push_back(make_op(ops::store, {storage.grad}, {to}, Phase::init, storage.offload->offload_site));
    };
    const auto zero = [&](TensorId tensor) {
      stream.ops.push_back(make_zero(tensor, Phase::init, state.plan.optimizer.site));
    };
    const bool resumes = state.options.resumes || state.options.generation,
               given = !state.program.initial_weights.empty(),
               partial = given && !resumes &&
                         (state.plan.initial_weights->partial ||
                          (state.plan.adapters.any() && !state.is_frozen(unit)));  // the base lacks adapters
    Op init = init_unit(state, unit, initial);
    // Reads the same parts of parameters, or of one of their optimizer states, from a checkpoint.
    const auto read = [&](TensorId state_tensor, TensorId to) {
      Op op = init;
      op.def = &ops::load_state;
      op.writes = {to};
      op.attrs.set("state", int64_t{state_tensor.index()});
      if (partial) op.attrs.set("partial", int64_t{1});
      stream.ops.push_back(std::move(op));
    };
    if (partial || !(resumes || given)) stream.ops.push_back(init);
    if (resumes || given) read(storage.master, initial);
    if (!storage.compute.none())
      stream.ops.push_back(make_cast(state.program, initial, storage.compute, Phase::init, state.plan.optimizer.site));
    if (storage.master_offloaded) store(storage.master);
    if (!storage.grad.none()) zero(storage.grad);
    if (storage.has_own_sum()) zero(storage.whole_grad);
    for (TensorId slot : storage.optimizer) {
      if (resumes) read(slot, storage.offload ? storage.grad : slot);
      if (storage.offload) store(slot);
      if (!resumes && !storage.offload) zero(slot);
    }
    for (Op& op : init_factors(state, unit, resumes)) stream.ops.push_back(std::move(op));
    if (resumes && storage.offload) zero(storage.grad);
  }
  if (!state.loss_tensor.none())
    stream.ops.push_back(make_zero(state.reduced_results(), Phase::init, state.graph.values[state.graph.loss].site));
  state.program.init().streams.push_back(std::move(stream));
}

// Losses are sums times (data ranks / global count). A rank holds 1/ranks of the samples, in microbatches that
// accumulate, so that the factor is 1 / (microbatches x count of one microbatch).
void scale_losses(CompileState& state) {
  auto set = [&](std::vector<Node>& nodes) {
    for (Node& node : nodes) {
      if (node.op->loss == Loss::none) continue;
      const Shape& shape = state.graph.values[node.inputs[node.op->counted]].type.shape;
      int64_t count = element_count(shape);
      if (node.op->counts_rows) count /= shape.back();
      const double gain = node.op->loss == Loss::gradient ? node.attrs.number("gain", 1) : 1;
      node.attrs.set("scale", gain * node.attrs.number("coefficient", 1) /
                                  (static_cast<double>(count) * static_cast<double>(state.microbatches())));
    }
  };
  set(state.graph.nodes);
  set(state.backward);
}

}  // namespace

void place(CompileState& state) {
  separate_parts(state);
  place_units(state);
  place_factors(state);
  if (!state.options.generation) {
    add_results(state, state.program.step(), "loss", true, state.graph.values[state.graph.loss].site);
    if (state.options.forward) {
      Body& step = state.program.step();  // has no op
      step.loss = step.results = TensorId();
      step.named.clear();
    }
    scale_losses(state);
  }
  describe_state(state);
  initialise(state);
}

}  // namespace prun
