// Where the parameters, gradients and optimizer state of each unit live, and how they begin.
//
// A unit that a strategy shards keeps 1/N of one padded flat vector; all others share one flat vector for
// parameters and one for gradients, in the order in which backward finishes gradients, so that a bucket of any size
// is one contiguous view.
#include <algorithm>

#include <fmt/format.h>

#include "compile/build.h"
#include "compile/draft.h"

namespace prun {
namespace {

int64_t line_elements(Dtype dtype) { return kAlignBytes / dtype_bytes(dtype); }

UnitLayout layout_of(const Draft& draft, const Unit& unit) {
  UnitLayout layout;
  layout.start.assign(unit.parameters.size(), 0);
  // A line of the narrowest dtype on the way (bf16) keeps every dtype's tensors on cache lines.
  int64_t line = line_elements(Dtype::bf16), next = 0;
  for (size_t i = unit.parameters.size(); i-- > 0;) {
    layout.start[i] = next;
    layout.elements = next + element_count(draft.graph.values[static_cast<size_t>(unit.parameters[i])].type.shape);
    next = round_up(layout.elements, line);
  }
  layout.padded = next;
  return layout;
}

const StrategyUnit* sharding_of(const Plan& plan, const std::string& unit_class) {
  const StrategyUnit* found = nullptr;
  for (const Strategy& strategy : plan.strategies) {
    for (const StrategyUnit& unit : strategy.units) {
      if (!unit.sharded || unit.unit_class != unit_class) continue;
      if (found)
        throw plan_error(fmt::format("the parameters of '{}' are sharded twice: over '{}' at {} and over '{}' here", unit_class,
                                     found->shard_axis, found->shard_site.text(), unit.shard_axis), unit.shard_site);
      found = &unit;
    }
  }
  return found;
}

std::vector<std::string> optimizer_slots(const Optimizer& optimizer) {
  if (optimizer.kind == "adamw") return {"adamw.m", "adamw.v"};
  if (optimizer.momentum != 0) return {"sgd.momentum"};
  return {};
}

Op init_op(const char* kind, std::vector<int> writes, const Site& site) {
  Op op;
  op.def = &op_def(kind);
  op.writes = std::move(writes);
  op.phase = Phase::init;
  op.site = site;
  return op;
}

// The initial values of unit `u`, flat, or this rank's shard of them.
Op init_unit(const Draft& draft, size_t u, int tensor) {
  const Unit& unit = draft.graph.units[u];
  std::vector<int64_t> starts, counts, kinds, keys;
  std::vector<double> scales;
  static const std::vector<std::string> kKinds = {"zeros", "ones", "constant", "normal", "uniform"};
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const Value& value = draft.graph.values[static_cast<size_t>(unit.parameters[i])];
    starts.push_back(draft.layouts[u].start[i]);
    counts.push_back(element_count(value.type.shape));
    kinds.push_back(std::find(kKinds.begin(), kKinds.end(), value.init.kind) - kKinds.begin());
    if (kinds.back() == static_cast<int64_t>(kKinds.size()))
      throw plan_error(fmt::format("initial values '{}' are not known", value.init.kind), value.site);
    scales.push_back(value.init.scale);
    keys.push_back(std::count_if(draft.graph.values.begin(), draft.graph.values.begin() + unit.parameters[i],
                                 [](const Value& v) { return v.kind == ValueKind::parameter; }));
  }
  Op op = init_op("init_params", {tensor}, draft.graph.values[static_cast<size_t>(unit.parameters.front())].site);
  op.attrs.set("starts", starts);
  op.attrs.set("counts", counts);
  op.attrs.set("kinds", kinds);
  op.attrs.set("keys", keys);
  op.attrs.set("scales", scales);
  const UnitState& state = draft.states[u];
  op.attrs.set("axis", state.sharded ? state.axis : std::string());
  op.unit = unit.name;
  return op;
}

Op fill_op(int tensor, const Site& site) {
  Op op = init_op("fill", {tensor}, site);
  op.attrs.set("value", 0.0);
  return op;
}

void find_data_axis(Draft& draft) {
  const Plan& plan = draft.plan;
  std::vector<std::string> axes;
  for (const Strategy& strategy : plan.strategies)
    if (std::find(axes.begin(), axes.end(), strategy.axis) == axes.end()) axes.push_back(strategy.axis);
  for (const std::string& axis : axes) draft.data_ranks *= plan.mesh.size(axis);
  draft.loss_axes = axes;
  if (axes.size() == 1) draft.data_axis = axes[0];
  if (axes.size() > 1) draft.data_axis = kWorld;  // read_plan has checked that strategies cover every axis
}

void place_units(Draft& draft) {
  Program& program = draft.program;
  const Graph& graph = draft.graph;
  int64_t flat = 0;
  draft.states.resize(graph.units.size());
  for (size_t u = 0; u < graph.units.size(); ++u) {
    UnitLayout layout = layout_of(draft, graph.units[u]);
    UnitState& state = draft.states[u];
    if (const StrategyUnit* sharding = sharding_of(draft.plan, graph.units[u].unit_class)) {
      state.sharded = true;
      state.axis = sharding->shard_axis;
      int64_t ranks = draft.plan.mesh.size(state.axis);
      state.shard = round_up((layout.elements + ranks - 1) / ranks, line_elements(Dtype::bf16));
      layout.padded = state.shard * ranks;
    } else {
      state.shard = layout.padded;
    }
    draft.layouts.push_back(std::move(layout));
  }
  for (size_t u = graph.units.size(); u-- > 0;) {
    if (draft.states[u].sharded) continue;
    draft.states[u].bucket_start = flat;
    flat += draft.layouts[u].padded;
  }
  Dtype master = draft.master_dtype();
  Site site = draft.plan.optimizer.site;
  int params = -1, grads = -1, low = -1;
  std::vector<int> slots;
  if (flat > 0) {
    params = add_tensor(program, "params", Role::param, {master, {flat}}, true, site);
    if (draft.plan.param_dtype != master) low = add_tensor(program, "params." + std::string(dtype_name(draft.plan.param_dtype)), Role::param, {draft.plan.param_dtype, {flat}}, true, site);
    grads = draft.flat_grads = add_tensor(program, "grads", Role::grad, {master, {flat}}, true, site);
    for (const std::string& slot : optimizer_slots(draft.plan.optimizer)) slots.push_back(add_tensor(program, slot, Role::optimizer, {master, {flat}}, true, site));
  }
  for (size_t u = 0; u < graph.units.size(); ++u) {
    UnitState& state = draft.states[u];
    const std::string& name = graph.units[u].name;
    Shape shape = {state.shard};
    auto own = [&](const std::string& what, Role role) { return add_tensor(program, name + "." + what, role, {master, shape}, true, site); };
    auto view = [&](const std::string& what, int of) { return add_view(program, name + "." + what, of, state.bucket_start, shape); };
    state.master = state.sharded ? own("shard", Role::param) : view("params", params);
    state.grad = state.sharded ? own("grad_shard", Role::grad) : view("grads", grads);
    if (!state.sharded && low >= 0) state.compute = view("params.low", low);
    std::vector<std::string> kinds = optimizer_slots(draft.plan.optimizer);
    for (size_t i = 0; i < kinds.size(); ++i)
      state.optimizer.push_back(state.sharded ? own(kinds[i], Role::optimizer) : view(kinds[i], slots[i]));
  }
}

void initialise(Draft& draft) {
  Stream stream;
  stream.name = "compute";
  for (size_t u = 0; u < draft.states.size(); ++u) {
    const UnitState& state = draft.states[u];
    if (draft.graph.units[u].parameters.empty()) continue;
    stream.ops.push_back(init_unit(draft, u, state.master));
    if (state.compute >= 0) {
      Op cast = init_op("cast", {state.compute}, draft.plan.optimizer.site);
      cast.reads = {state.master};
      cast.attrs.set("dtype", std::string(dtype_name(draft.plan.param_dtype)));
      stream.ops.push_back(std::move(cast));
    }
    stream.ops.push_back(fill_op(state.grad, draft.plan.optimizer.site));
    for (int slot : state.optimizer) stream.ops.push_back(fill_op(slot, draft.plan.optimizer.site));
  }
  stream.ops.push_back(fill_op(draft.loss_tensor, draft.graph.values[static_cast<size_t>(draft.graph.loss)].site));
  draft.program.init.streams.push_back(std::move(stream));
}

// Losses are sums times (data ranks / global count); a rank holds 1/ranks of the samples, so that is 1 / local count.
void scale_losses(Draft& draft) {
  auto set = [&](std::vector<Node>& nodes) {
    for (Node& node : nodes) {
      bool loss = node.op->name == "cross_entropy" || node.op->name == "cross_entropy_grad";
      bool elementwise = node.op->name.starts_with("mse") || node.op->name.starts_with("mean");
      if (!loss && !elementwise) continue;
      Shape shape = draft.graph.values[static_cast<size_t>(node.inputs.front())].type.shape;
      int64_t count = element_count(shape);
      if (loss) count /= shape.back();
      node.attrs.set("scale", 1.0 / static_cast<double>(count));
    }
  };
  set(draft.graph.nodes);
  set(draft.backward);
}

}  // namespace

void place(Draft& draft) {
  find_data_axis(draft);
  place_units(draft);
  draft.loss_tensor = add_tensor(draft.program, "loss", Role::data, {draft.graph.values[static_cast<size_t>(draft.graph.loss)].type.dtype, {}},
                                 true, draft.graph.values[static_cast<size_t>(draft.graph.loss)].site);
  draft.program.loss_tensor = draft.loss_tensor;
  scale_losses(draft);
  initialise(draft);
}

}  // namespace prun
