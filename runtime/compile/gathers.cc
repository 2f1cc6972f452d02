// Full parameters of sharded units: gathered into slots of a pool, read by the call, freed.
//
// A pool has prefetch + 1 slots handed out in turn. A gather may run as soon as the former content of its slot has
// been read for the last time, so the slots are the credits, and at most prefetch + 1 gathered calls are live.
#include <algorithm>

#include <fmt/format.h>

#include "compile/build.h"
#include "compile/step_builder.h"

namespace prun {

int StepBuilder::pool_of(const std::string& name, Role role, int slots) {
  auto [it, fresh] = pool_index_.try_emplace(name, static_cast<int>(program_.pools.size()));
  if (fresh) program_.pools.push_back({name, role, slots, 0});
  Pool& pool = program_.pools[static_cast<size_t>(it->second)];
  pool.slots = std::max(pool.slots, slots);
  return it->second;
}

int StepBuilder::claim_slot(int pool, const std::string& what, const Site& site,
                            bool (StepBuilder::*busy)(int, int, std::string&)) {
  int slots = program_.pools[static_cast<size_t>(pool)].slots;
  int slot = slot_counter_[pool]++ % slots;
  std::string holder;
  if ((this->*busy)(pool, slot, holder))
    throw plan_error(fmt::format("{} cannot be issued: {} taken by {}", what, slots == 1 ? "its only slot is" : fmt::format("the next of its {} slots is", slots), holder), site);
  return slot;
}

bool StepBuilder::gather_slot_busy(int pool, int slot, std::string& holder) {
  for (const Gathered& g : gathered_) {
    if (!g.live || g.pool != pool || g.slot != slot) continue;
    holder = fmt::format("{} (gathered at {}, never freed)", unit_name(draft_.graph.calls[static_cast<size_t>(g.call)].unit), g.site.text());
    return true;
  }
  return false;
}

// The sharded units whose parameters the turn's nodes read; a call with tied weights reads another unit's too.
std::vector<int> StepBuilder::units_read(const Turn& turn) const {
  std::vector<int> units;
  for (const Node* node : nodes_of(turn))
    for (int input : node->inputs) {
      const Value& value = draft_.graph.values[static_cast<size_t>(input)];
      if (value.kind != ValueKind::parameter || !draft_.states[static_cast<size_t>(value.unit)].sharded) continue;
      if (std::find(units.begin(), units.end(), value.unit) == units.end()) units.push_back(value.unit);
    }
  return units;
}

void StepBuilder::gather(const Turn& turn, int strategy, const Intent& intent) {
  std::vector<int> units = units_read(turn);
  if (units.empty()) return;  // nobody would read it (an embedding's backward)
  Dtype dtype = draft_.plan.param_dtype;
  int64_t elements = 0;
  for (int unit : units) elements += draft_.layouts[static_cast<size_t>(unit)].padded;

  Gathered g;
  g.strategy = strategy;
  g.handle = intent.handle;
  g.call = turn.call;
  g.site = intent.site;
  const std::string& name = unit_name(unit_of(turn));
  g.pool = pool_of(fmt::format("{}.gathered", draft_.plan.strategies[static_cast<size_t>(strategy)].name), Role::gathered, intent.prefetch + 1);
  g.slot = claim_slot(g.pool, "the all_gather of " + name, intent.site, &StepBuilder::gather_slot_busy);
  int all = add_tensor(program_, fmt::format("{}.full.{}", name, phase_name(turn.phase)), Role::gathered, {dtype, {elements}}, false, intent.site);
  g.buffer = program_.tensors[static_cast<size_t>(all)].buffer;
  Buffer& buffer = program_.buffers[static_cast<size_t>(g.buffer)];
  buffer.pool = g.pool;
  buffer.slot = g.slot;
  Pool& pool = program_.pools[static_cast<size_t>(g.pool)];
  pool.slot_bytes = std::max(pool.slot_bytes, buffer.bytes);
  auto previous = occupant_.find({g.pool, g.slot});
  if (previous != occupant_.end()) recorder_.take_over(g.buffer, previous->second);
  occupant_[{g.pool, g.slot}] = g.buffer;

  int stream = recorder_.stream(intent.stream);
  int64_t first = 0;
  for (int unit : units) {
    const UnitState& state = draft_.states[static_cast<size_t>(unit)];
    int64_t padded = draft_.layouts[static_cast<size_t>(unit)].padded;
    int full = units.size() == 1 ? all : add_view(program_, unit_name(unit) + ".full", all, first, {padded});
    first += padded;
    g.full[unit] = full;
    int shard = state.master;
    if (dtype != draft_.master_dtype()) {
      shard = add_tensor(program_, unit_name(unit) + ".wire", Role::workspace, {dtype, {state.shard}}, false, intent.site);
      Op cast = communication("all_gather", intent, turn, state.master, shard);
      cast.def = &op_def("cast");
      cast.axis.clear();
      cast.attrs.set("dtype", std::string(dtype_name(dtype)));
      recorder_.record(stream, std::move(cast));
    }
    Op op = communication("all_gather", intent, turn, shard, full);
    op.unit = unit_name(unit);
    op.lane = stream;
    recorder_.record(stream, std::move(op));
  }
  gathered_.push_back(std::move(g));
}

StepBuilder::Gathered* StepBuilder::find_live(int strategy, int handle, int unit) {
  for (Gathered& g : gathered_)
    if (g.live && g.strategy == strategy && g.handle == handle && draft_.graph.calls[static_cast<size_t>(g.call)].unit == unit) return &g;
  return nullptr;
}

void StepBuilder::free_gathered(const Turn& turn, int strategy, const Intent& intent) {
  bool last = turn.phase == Phase::forward && turn.call + 1 == static_cast<int>(draft_.graph.calls.size());
  if (intent.keep_last && last) return;
  if (Gathered* g = find_live(strategy, intent.handle, unit_of(turn))) {
    g->live = false;
    g->freed = intent.site;
  }
}

// Points at the strategy's line, which is the one to change.
void StepBuilder::not_gathered(const Value& parameter, const Node& reader, const Site& freed) const {
  if (freed.known())
    throw plan_error(fmt::format("'{}' is freed here, before {} at {} reads it", parameter.name, reader.op->name, reader.site.text()), freed);
  Site sharded;
  for (const Strategy& strategy : draft_.plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      if (unit.sharded && unit.unit_class == draft_.graph.units[static_cast<size_t>(parameter.unit)].unit_class) sharded = unit.shard_site;
  throw plan_error(fmt::format("the parameters of '{}' are sharded here, but no hook gathers them before {} at {} reads '{}'",
                               unit_name(parameter.unit), reader.op->name, reader.site.text(), parameter.name), sharded);
}

int StepBuilder::parameter(int value, const Node& reader) {
  const Value& v = draft_.graph.values[static_cast<size_t>(value)];
  const UnitState& state = draft_.states[static_cast<size_t>(v.unit)];
  const Unit& unit = draft_.graph.units[static_cast<size_t>(v.unit)];
  size_t index = static_cast<size_t>(std::find(unit.parameters.begin(), unit.parameters.end(), value) - unit.parameters.begin());
  int of = state.compute >= 0 ? state.compute : state.master;
  if (state.sharded) {
    of = -1;
    Site freed;
    for (const Gathered& g : gathered_) {
      auto full = g.full.find(v.unit);
      if (full == g.full.end()) continue;
      if (g.live) of = full->second;
      else freed = g.freed;
    }
    if (of < 0) not_gathered(v, reader, freed);
  }
  auto [it, fresh] = views_.try_emplace({v.unit, index, of}, -1);
  if (fresh) it->second = add_view(program_, v.name, of, draft_.layouts[static_cast<size_t>(v.unit)].start[index], v.type.shape);
  return it->second;
}

}  // namespace prun
