// Full parameters of sharded units: gathered into slots of a pool, read by the call, freed.
//
// A pool has prefetch + 1 slots handed out in turn. A gather may run as soon as the former content of its slot has
// been read for the last time, so the slots are the credits, and at most prefetch + 1 gathered calls are live.
#include <fmt/format.h>

#include <algorithm>

#include "compile/ir_build.h"
#include "compile/step_builder.h"
#include "ir/ops.h"

namespace prun {

int StepBuilder::pool_of(const std::string& name, Role role, int slots) {
  auto [it, fresh] = pool_index_.try_emplace(name, static_cast<int>(program_.pools.size()));
  if (fresh) program_.pools.push_back({name, role, slots, 0});
  Pool& pool = program_.pools[it->second];
  pool.slots = std::max(pool.slots, slots);
  return it->second;
}

int StepBuilder::claim_slot(int pool, const std::string& what, const Site& site,
                            bool (StepBuilder::*busy)(int, int, std::string&)) {
  int slots = program_.pools[pool].slots;
  int slot = slot_counter_[pool]++ % slots;
  std::string holder;
  if ((this->*busy)(pool, slot, holder))
    throw plan_error(
        fmt::format("{} cannot be issued: {} taken by {}", what,
                    slots == 1 ? "its only slot is" : fmt::format("the next of its {} slots is", slots), holder),
        site);
  return slot;
}

bool StepBuilder::gather_slot_busy(int pool, int slot, std::string& holder) {
  for (const Gathered& g : gathered_) {
    if (!g.live || g.pool != pool || g.slot != slot) continue;
    holder = fmt::format("{} (gathered at {}, never freed)", unit_name(state_.graph.calls[g.call].unit), g.site.text());
    return true;
  }
  return false;
}

// The sharded units whose parameters the turn's nodes read; a call with tied weights reads another unit's too.
std::vector<UnitId> StepBuilder::units_read(const ScheduleStep& turn) const {
  std::vector<UnitId> units;
  std::vector<const Node*> nodes = nodes_of(turn);
  if (turn.phase == Phase::backward && recomputes(turn))
    nodes.insert(nodes.end(), forward_[turn.call].begin(), forward_[turn.call].end());
  for (const Node* node : nodes)
    for (ValueId input : node->inputs) {
      const Value& value = state_.graph.values[input];
      if (value.kind != ValueKind::parameter || !state_.storage[value.unit].sharded) continue;
      if (std::find(units.begin(), units.end(), value.unit) == units.end()) units.push_back(value.unit);
    }
  return units;
}

void StepBuilder::gather(const ScheduleStep& turn, int strategy, const HookAction& action) {
  std::vector<UnitId> units = units_read(turn);
  if (units.empty()) return;                                      // nobody would read it (an embedding's backward)
  if (find_live(strategy, action.handle, unit_of(turn))) return;  // kept since another microbatch
  Dtype dtype = state_.plan.param_dtype;
  int64_t elements = 0;
  for (UnitId unit : units) elements += state_.layouts[unit].padded;

  Gathered g;
  g.strategy = strategy;
  g.handle = action.handle;
  g.call = turn.call;
  g.keep = action.keep;
  g.site = action.site;
  const std::string& name = unit_name(unit_of(turn));
  g.pool = -1;
  if (!action.keep) {
    g.pool =
        pool_of(fmt::format("{}.gathered", state_.plan.strategies[strategy].name), Role::gathered, action.prefetch + 1);
    g.slot = claim_slot(g.pool, "the all_gather of " + name, action.site, &StepBuilder::gather_slot_busy);
  }
  TensorId all = add_tensor(program_, microbatch_name(fmt::format("{}.full.{}", name, phase_name(turn.phase))),
                            Role::gathered, {dtype, {elements}}, false, action.site);
  g.buffer = program_.tensors[all].buffer;
  if (!action.keep) enter_pool(g.buffer, g.pool, g.slot);

  int stream = recorder_.stream(action.stream);
  int64_t first = 0;
  for (UnitId unit : units) {
    const UnitStorage& storage = state_.storage[unit];
    int64_t padded = state_.layouts[unit].padded;
    const TensorId full = units.size() == 1 ? all : add_view(program_, unit_name(unit) + ".full", all, first, {padded});
    first += padded;
    g.full[unit] = full;
    Dtype wire = action.wire.empty() ? dtype : *parse_dtype(action.wire);
    const TensorId shard = cast(storage.compute >= 0 ? storage.compute : storage.master, wire,
                                unit_name(unit) + ".wire", action, turn, stream);
    const TensorId arrived = wire == dtype ? full
                                           : add_tensor(program_, unit_name(unit) + ".arrived", Role::workspace,
                                                        {wire, {padded}}, false, action.site);
    Op op = communication(ops::all_gather, action, turn, shard, arrived);
    op.unit = unit_name(unit);
    communicate_on(action.stream, std::move(op));
    if (arrived != full) cast_into(arrived, full, action, turn, stream);
  }
  gathered_.push_back(std::move(g));
}

// `buffer` takes a slot of a pool over from its last occupant.
void StepBuilder::enter_pool(BufferId buffer, int pool, int slot) {
  Buffer& entering = program_.buffers[buffer];
  entering.pool = pool;
  entering.slot = slot;
  Pool& room = program_.pools[pool];
  room.slot_bytes = std::max(room.slot_bytes, entering.bytes);
  auto [previous, fresh] = occupant_.try_emplace({pool, slot}, buffer);
  if (!fresh) recorder_.take_over(buffer, previous->second);
  previous->second = buffer;
}

// The tensor in another dtype; itself when it has that.
TensorId StepBuilder::cast(TensorId tensor, Dtype dtype, const std::string& name, const HookAction& action,
                           const ScheduleStep& turn, int stream) {
  const Tensor from = program_.tensors[tensor];
  if (from.dtype == dtype) return tensor;
  TensorId to = add_tensor(program_, name, Role::workspace, {dtype, from.shape}, false, action.site);
  cast_into(tensor, to, action, turn, stream);
  return to;
}

void StepBuilder::cast_into(TensorId from, TensorId to, const HookAction& action, const ScheduleStep& turn,
                            int stream) {
  Op op = communication(ops::all_gather, action, turn, from, to);
  op.def = &ops::cast;
  op.axis.clear();
  op.attrs.set("dtype", std::string(dtype_name(program_.tensors[to].dtype)));
  recorder_.record(stream, std::move(op));
}

StepBuilder::Gathered* StepBuilder::find_live(int strategy, int handle, UnitId unit) {
  for (Gathered& g : gathered_)
    if (g.live && g.strategy == strategy && g.handle == handle && state_.graph.calls[g.call].unit == unit) return &g;
  return nullptr;
}

void StepBuilder::free_gathered(const ScheduleStep& turn, int strategy, const HookAction& action) {
  bool backward_next =
      turn.phase == Phase::forward && next_ && next_->phase == Phase::backward && next_->call == turn.call;
  if (action.keep_last && backward_next) return;
  Gathered* g = find_live(strategy, action.handle, unit_of(turn));
  if (!g) return;
  if (g->keep && !(turn.phase == Phase::backward && is_last(turn))) return;  // other microbatches read it still
  g->live = false;
  g->freed = action.site;
}

// Points at the strategy's line, which is the one to change.
void StepBuilder::not_gathered(const Value& parameter, const Node& reader, const Site& freed) const {
  if (freed.known())
    throw plan_error(fmt::format("'{}' is freed here, before {} at {} reads it", parameter.name, reader.op->name,
                                 reader.site.text()),
                     freed);
  Site sharded;
  for (const Strategy& strategy : state_.plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      if (unit.sharded && unit.unit_class == state_.graph.units[parameter.unit].unit_class) sharded = unit.shard_site;
  throw plan_error(
      fmt::format("the parameters of '{}' are sharded here, but no hook gathers them before {} at {} reads '{}'",
                  unit_name(parameter.unit), reader.op->name, reader.site.text(), parameter.name),
      sharded);
}

TensorId StepBuilder::parameter(ValueId value, const Node& reader) {
  const Value& v = state_.graph.values[value];
  const UnitStorage& storage = state_.storage[v.unit];
  const Unit& unit = state_.graph.units[v.unit];
  size_t index =
      static_cast<size_t>(std::find(unit.parameters.begin(), unit.parameters.end(), value) - unit.parameters.begin());
  int of = storage.compute >= 0 ? storage.compute : storage.master;
  if (storage.sharded) {
    of = -1;
    Site freed;
    for (const Gathered& g : gathered_) {
      auto full = g.full.find(v.unit);
      if (full == g.full.end()) continue;
      if (g.live)
        of = full->second;
      else
        freed = g.freed;
    }
    if (of < 0) not_gathered(v, reader, freed);
  }
  auto [it, fresh] = views_.try_emplace({v.unit, index, of}, -1);
  if (fresh) it->second = add_view(program_, v.name, of, state_.layouts[v.unit].start[index], v.type.shape);
  return it->second;
}

}  // namespace prun
