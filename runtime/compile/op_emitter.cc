// A lane matches messages of ranks with different programs. The plan therefore numbers the lanes, because programs
// number their streams differently.
#include "compile/op_emitter.h"

#include <fmt/format.h>

#include <algorithm>

#include "compile/ir_build.h"
#include "ir/ops.h"

namespace prun {

OpEmitter::OpEmitter(CompileState& state, Body& body)
    : EdgeBuilder(state.program, body), state_(state), program_(state.program) {
  tensor_of_.assign(state.plan.microbatches, Table<ValueId, TensorId>(state.graph.values.size()));
  for (const Pool& pool : program_.pools) pool_index_.try_emplace(pool.name, pool_index_.size());
  const auto add_lane = [&](const std::string& name, const Site& site) {
    lanes_.try_emplace(name, lanes_.size());
    if (std::ssize(lanes_) > static_cast<int>(MessageLane::forward))
      throw plan_error(
          fmt::format("'{}' would be number {} of the streams and axes that communicate: a plan has at most {}", name,
                      lanes_.size(), static_cast<int>(MessageLane::forward)),
          site);
  };
  add_lane("", {});
  for (const Strategy& strategy : state.plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      for (const Hook& hook : unit.hooks)
        for (const HookAction& action : hook.actions) add_lane(action.stream, action.site);
  for (const Axis& axis : state.plan.mesh.axes()) add_lane(axis.name, state.plan.mesh_site);
  stream("compute");
}

Op OpEmitter::op(const OpDef& def, std::vector<TensorId> reads, std::vector<TensorId> writes, const ScheduleStep& step,
                 const Site& site, UnitId unit) const {
  Op op = make_op(def, std::move(reads), std::move(writes), step.phase, site);
  op.unit = state_.unit_name(!unit.none() ? unit : state_.unit_of(step));
  op.microbatch = state_.plan.microbatches > 1 ? step.microbatch : -1;
  return op;
}

Op OpEmitter::op(const OpDef& def, TensorId read, TensorId write, const HookAction& action,
                 const ScheduleStep& step) const {
  Op op = this->op(def, {read}, {write}, step, action.site);
  op.axis = action.axis;
  if (&def != &ops::all_gather) op.attrs.set("op", action.op);
  return op;
}

void OpEmitter::communicate(const std::string& stream, Op&& op) {
  op.lane = lanes_.at(stream);
  EdgeBuilder::communicate(stream, std::move(op));
}

void OpEmitter::add_in_place(TensorId into, TensorId what, const ScheduleStep& step, const Site& site,
                             StreamId stream) {
  append(stream, op(ops::add, {into, what}, {into}, step, site));
}

void OpEmitter::cast(TensorId from, TensorId to, const HookAction& action, const ScheduleStep& step, StreamId stream) {
  Op cast = op(ops::cast, {from}, {to}, step, action.site);
  cast.attrs.set("dtype", std::string(dtype_name(program_.tensors[to].dtype)));
  append(stream, std::move(cast));
}

void OpEmitter::communicate_over_wire(const OpDef& def, TensorId from, TensorId to, const HookAction& action,
                                      const ScheduleStep& step, UnitId unit) {
  if (from == to && state_.plan.mesh.size(action.axis) == 1) return;  // nothing is sent, so that nothing is rounded
  const StreamId stream = this->stream(action.stream);
  const TensorType source = program_.tensors[from].type(), target = program_.tensors[to].type();
  const Dtype wire = action.wire.empty() ? target.dtype : *parse_dtype(action.wire);
  TensorId sent = from, arrived = to;
  const auto temporary = [&](const char* name, const Shape& shape) {
    return add_tensor(program_, state_.unit_name(unit) + name, Role::workspace, {wire, shape}, false, action.site);
  };
  if (source.dtype != wire) {
    sent = temporary(".wire", source.shape);
    cast(from, sent, action, step, stream);
  }
  if (wire != target.dtype) arrived = from == to ? sent : temporary(".arrived", target.shape);
  Op op = this->op(def, sent, arrived, action, step);
  op.unit = state_.unit_name(unit);
  communicate(action.stream, std::move(op));
  if (arrived != to) cast(arrived, to, action, step, stream);
}

std::string OpEmitter::name_of(const std::string& name, int microbatch) const {
  if (state_.plan.microbatches == 1) return name;
  const fmt::format_int number(microbatch);
  std::string labelled;
  labelled.reserve(name.size() + 1 + number.size());
  return labelled.append(name).append(1, '#').append(number.data(), number.size());
}

TensorId OpEmitter::activation(const Value& value, int microbatch) {
  const Role role = value.unwanted ? Role::workspace : Role::activation;
  return add_tensor(program_, name_of(value.name, microbatch), role, value.type, false, value.site);
}

TensorId OpEmitter::activation(const std::string& name, TensorType type, const Site& site) {
  return add_tensor(program_, name, Role::activation, std::move(type), false, site);
}

TensorId OpEmitter::input_of(ValueId value, int microbatch) {
  const TensorId tensor = tensor_of(value, microbatch);
  PRUN_CHECK(!tensor.none(), "value " + state_.graph.values[value].name + " is read before it is written");
  return tensor;
}

TensorId OpEmitter::parameter_view(UnitId unit, int parameter, TensorId flat, const std::string& name) {
  auto [view, fresh] = views_.try_emplace({unit, parameter, flat}, -1);
  if (fresh)
    view->second = add_view(program_, name, flat, state_.layouts[unit].start[parameter],
                            state_.graph.values[state_.graph.units[unit].parameters[parameter]].type.shape);
  return view->second;
}

int OpEmitter::pool_of(const std::string& name, Role role, int64_t slots) {
  auto [found, fresh] = pool_index_.try_emplace(name, program_.pools.size());
  if (fresh) program_.pools.push_back({name, role, 0, 0});
  Pool& pool = program_.pools[found->second];
  pool.slots = std::max(pool.slots, static_cast<int>(std::min<int64_t>(slots, INT32_MAX)));
  return found->second;
}

int OpEmitter::claim_slot(int pool, const std::string& what, const Site& site,
                          const std::function<std::string(int slot)>& holder) {
  const int slots = program_.pools[pool].slots, slot = next_slot(pool);
  if (const std::string held = holder(slot); !held.empty())
    throw plan_error(
        fmt::format("{} cannot be issued: {} taken by {}", what,
                    slots == 1 ? "its only slot is" : fmt::format("the next of its {} slots is", slots), held),
        site);
  return slot;
}

void OpEmitter::enter_pool(BufferId buffer, int pool, int slot) {
  Buffer& entering = program_.buffers[buffer];
  entering.pool = pool;
  entering.slot = slot;
  Pool& room = program_.pools[pool];
  room.slot_bytes = std::max(room.slot_bytes, entering.bytes);
  auto [previous, fresh] = occupant_.try_emplace({pool, slot}, buffer);
  if (!fresh) take_over(buffer, previous->second);
  previous->second = buffer;
}

}  // namespace prun
