// A pool has prefetch + 1 slots, assigned round-robin. A gather runs as soon as the last reader of its slot's previous
// content has completed: slots are credits, and at most prefetch + 1 gathered calls are live. A slot that still holds
// the requested parameters is not gathered again.
#include "compile/gathered_parameters.h"

#include <fmt/format.h>

#include <algorithm>

#include "compile/ir_build.h"
#include "ir/ops.h"

namespace prun {

void GatheredParameters::gather(const ScheduleStep& step, int strategy, const HookAction& action) {
  std::vector<UnitId> units = index_.sharded_units_read(step);
  for (const Gathered* g : live(step, strategy, action.handle))  // kept since another microbatch or call
    std::erase_if(units, [&](UnitId unit) { return g->full.count(unit) != 0; });
  if (units.empty()) return;  // without readers, e.g. an embedding's backward
  Program& program = state_.program;
  const std::string& name = state_.unit_name(state_.unit_of(step));
  int64_t elements = 0, first = 0;

  Gathered g;
  g.strategy = strategy;
  g.handle = action.handle;
  g.call = step.call;
  g.microbatch = step.microbatch;
  g.wire = action.wire;
  g.keep = action.keep;
  g.site = action.site;
  const std::vector<Source> sources = sources_of(step, strategy, action, units, g);
  for (const Source& source : sources) elements += source.elements;
  const bool whole = is_whole(units.front(), g.axes);
  if (!action.keep) {
    const std::string& owner = state_.plan.strategies[strategy].name;
    g.pool = emitter_.pool_of(whole ? owner + ".gathered" : fmt::format("{}.gathered.{}", owner, action.axis),
                              Role::gathered, int64_t{action.prefetch} + 1);
    g.slot = emitter_.claim_slot(g.pool, "the all_gather of " + name, action.site, [&](int slot) {
      const auto held = holder_.find({g.pool, slot});
      if (held == holder_.end() || !gathered_[held->second].live) return std::string();
      const Gathered& other = gathered_[held->second];
      return fmt::format("{} (gathered at {}, never freed)", state_.unit_name(state_.graph.calls[other.call].unit),
                         other.site.text());
    });
  }
  if (const Gathered* before = still_there(g, units)) {
    g.full = before->full;
    return enter(std::move(g));
  }
  if (state_.plan.mesh.size(action.axis) == 1) {
    for (const Source& source : sources) g.full[source.unit] = source.from;
    return enter(std::move(g));
  }
  const GathersAhead::Wanted wanted{strategy, &action, step, units, elements, g.pool, g.slot};
  if (const GatherAhead* ahead = ahead_.find(wanted)) {
    for (size_t i = 0; i < units.size(); ++i) g.full[units[i]] = ahead->parts[i];
    return enter(std::move(g));
  }
  const TensorId all = add_tensor(
      program,
      emitter_.name_of(fmt::format("{}.{}.{}", name, whole ? "full" : "part", phase_name(step.phase)), step.microbatch),
      Role::gathered, {state_.plan.param_dtype, {elements}}, false, action.site);
  if (!action.keep) emitter_.enter_pool(program.tensors[all].buffer, g.pool, g.slot);
  emitter_.stream(action.stream);
  for (const auto& [unit, from, made] : sources) {
    const TensorId full =
        units.size() == 1 ? all : add_view(program, state_.unit_name(unit) + ".full", all, first, {made});
    first += made;
    g.full[unit] = full;
    emitter_.communicate_over_wire(ops::all_gather, from, full, action, step, unit);
  }
  enter(std::move(g));
}

bool GatheredParameters::is_whole(UnitId unit, int axes) const {
  return axes == std::ssize(state_.storage[unit].axes());
}

std::vector<GatheredParameters::Source> GatheredParameters::sources_of(const ScheduleStep& step, int strategy,
                                                                       const HookAction& action,
                                                                       const std::vector<UnitId>& units, Gathered& g) {
  std::vector<Source> sources;
  for (const UnitId unit : units) {
    TensorId from = action.source < 0 ? state_.read_of(unit) : TensorId();
    int gathered = 0;
    if (action.source >= 0)
      for (const Gathered* before : live(step, strategy, action.source))
        if (const auto found = before->full.find(unit); found != before->full.end())
          from = found->second, gathered = before->axes;
    if (from.none())
      throw plan_error(
          fmt::format("gathers pieces of '{}' that no all_gather has made, or that are freed", state_.unit_name(unit)),
          action.site);
    // The last axis cut the pieces of the others, so that its ranks' shards join to one of them.
    const std::vector<std::string> axes = state_.storage[unit].axes();
    const int left = std::ssize(axes) - gathered;
    if (left == 0 || axes[left - 1] != action.axis)
      throw plan_error(
          fmt::format(
              "gathers the parameters of '{}' over '{}', and {}", state_.unit_name(unit), action.axis,
              left == 0 ? "they are whole" : fmt::format("'{}' is the last axis that shards them", axes[left - 1])),
          action.site);
    g.axes = gathered + 1;
    sources.push_back({unit, from, state_.program.tensors[from].count() * state_.plan.mesh.size(action.axis)});
  }
  return sources;
}

// The last unit before the loss is gathered for forward and again for backward, with its slot untouched in between. A
// match requires the same microbatch, so that every period of a repeat has the same ops.
const GatheredParameters::Gathered* GatheredParameters::still_there(const Gathered& g,
                                                                    const std::vector<UnitId>& units) const {
  const auto held = g.keep ? holder_.end() : holder_.find({g.pool, g.slot});
  if (held == holder_.end()) return nullptr;
  const Gathered& before = gathered_[held->second];
  const bool same = before.strategy == g.strategy && before.wire == g.wire && before.microbatch == g.microbatch &&
                    before.full.size() == units.size() &&
                    std::ranges::all_of(units, [&](UnitId unit) { return before.full.contains(unit); });
  return same ? &before : nullptr;
}

void GatheredParameters::enter(Gathered g) {
  const int number = gathered_.size();
  if (!g.keep) holder_[{g.pool, g.slot}] = number;
  of_caller_[state_.graph.calls[g.call].unit].push_back(number);
  for (const auto& [unit, full] : g.full)
    if (is_whole(unit, g.axes)) live_of_[unit].push_back(number);
  gathered_.push_back(std::move(g));
}

std::vector<GatheredParameters::Gathered*> GatheredParameters::live(const ScheduleStep& step, int strategy,
                                                                    int handle) {
  const UnitId unit = state_.unit_of(step);
  std::vector<Gathered*> found;
  for (int number : of_caller_[unit])
    if (Gathered& g = gathered_[number]; g.strategy == strategy && g.handle == handle) found.push_back(&g);
  return found;
}

void GatheredParameters::free(const ScheduleStep& step, int strategy, const HookAction& action,
                              const ScheduleStep* next) {
  const bool backward_next = step.phase == Phase::forward && next && next->phase == Phase::backward &&
                             next->half != Half::weight && next->call == step.call;  // it frees them, too
  if (action.keep_last && backward_next) return;
  const bool read_last = step.phase == Phase::backward && index_.is_last(step) && index_.is_first_call(step);
  for (Gathered* g : live(step, strategy, action.handle)) {
    if (g->keep && !read_last) continue;  // other microbatches and calls still read it
    g->live = false;
    g->freed = action.site;
    const int number = g - gathered_.data();
    std::erase(of_caller_[state_.graph.calls[g->call].unit], number);
    for (const auto& [unit, full] : g->full) std::erase(live_of_[unit], number);
  }
}

// Reports the strategy's line, because it is the line to change.
void GatheredParameters::not_gathered(const Value& parameter, const OpDef& reader, const Site& site) const {
  Site freed;
  for (const Gathered& g : gathered_)
    if (g.full.contains(parameter.unit) && is_whole(parameter.unit, g.axes)) freed = g.freed;
  if (freed.known())
    throw plan_error(
        fmt::format("'{}' is freed here, before {} at {} reads it", parameter.name, reader.name, site.text()), freed);
  const Unit& unit = state_.graph.units[parameter.unit];
  throw plan_error(
      fmt::format("the parameters of '{}' are sharded here, but no hook gathers them before {} at {} reads '{}'",
                  unit.name, reader.name, site.text(), parameter.name),
      state_.strategies.of(unit).sharding()->shard_site);
}

TensorId GatheredParameters::parameter(ValueId value, const OpDef& reader, const Site& site) {
  const Value& v = state_.graph.values[value];
  const UnitStorage& storage = state_.storage[v.unit];
  const std::vector<ValueId>& parameters = state_.graph.units[v.unit].parameters;
  TensorId flat = storage.sharded ? TensorId() : state_.read_of(v.unit);
  if (const std::vector<int>& live = live_of_[v.unit]; !live.empty()) flat = gathered_[live.back()].full.at(v.unit);
  if (flat.none()) not_gathered(v, reader, site);
  const auto at = std::find(parameters.begin(), parameters.end(), value) - parameters.begin();
  return emitter_.parameter_view(v.unit, static_cast<int>(at), flat, v.name);
}

}  // namespace prun
