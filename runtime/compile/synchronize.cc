// The synchronization body: parameters that each rank has trained on its own for some steps become their average again.
//
// Parameters of units that are not sharded lie side by side, so neighbours travel in one collective.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "compile/compile_state.h"
#include "compile/edge_builder.h"
#include "compile/ir_build.h"
#include "ir/ops.h"

namespace prun {
namespace {

struct Average {
  const HookAction* action;
  std::vector<std::pair<int64_t, int64_t>> ranges;  // of the flat parameters, ascending
};

int64_t sync_steps(const Plan& plan) {
  int64_t every = 0;
  for (const Strategy& strategy : plan.strategies)
    for (const StrategyUnit& unit : strategy.units) {
      if (unit.sync_every == 0) continue;
      if (every != 0 && unit.sync_every != every)
        throw plan_error(
            fmt::format("weights are averaged every {} steps here and every {} elsewhere: a plan has one rhythm",
                        unit.sync_every, every),
            strategy.site);
      every = unit.sync_every;
    }
  return every;
}

// What each action averages on this rank.
std::vector<Average> averages_of(const CompileState& state) {
  std::vector<Average> averages;
  std::map<std::pair<std::string, std::string>, size_t> known;  // axis and reduction
  for (size_t u = state.graph.units.size(); u-- > 0;) {         // the order of the layout
    const UnitStorage& storage = state.storage[u];
    const Unit& unit = state.graph.units[u];
    if (!storage.here || unit.parameters.empty()) continue;
    for (const Strategy& strategy : state.plan.strategies)
      for (const StrategyUnit& of : strategy.units)
        for (const HookAction& action : of.sync) {
          if (of.unit_class != unit.unit_class) continue;
          if (storage.sharded)
            throw plan_error(fmt::format("the parameters of '{}' are sharded over '{}': there is nothing to average",
                                         unit.name, storage.axis),
                             action.site);
          auto [it, fresh] = known.try_emplace({action.axis, action.op}, averages.size());
          if (fresh) averages.push_back({&action, {}});
          auto& ranges = averages[it->second].ranges;
          int64_t begin = storage.bucket_start, end = begin + storage.shard;
          if (!ranges.empty() && ranges.back().second == begin)
            ranges.back().second = end;
          else
            ranges.emplace_back(begin, end);
        }
  }
  return averages;
}

}  // namespace

bool synchronizes(const Plan& plan, const std::string& unit_class, const std::string& axis) {
  for (const Strategy& strategy : plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      for (const HookAction& action : unit.sync)
        if (unit.unit_class == unit_class && action.axis == axis) return true;
  return false;
}

void synchronize(CompileState& state) {
  Program& program = state.program;
  const int64_t every = sync_steps(state.plan);
  if (every == 0) return;
  program.bodies.push_back({"synchronization", {every}, {}, {}, {}});
  EdgeBuilder recorder(program, program.bodies.back());
  recorder.stream("compute");
  Site site;
  for (const Average& average : averages_of(state)) {
    site = average.action->site;
    for (auto [begin, end] : average.ranges) {
      Op op;
      op.def = &ops::all_reduce;
      op.reads = op.writes = {add_view(program, "params.synced", state.flat_params, begin, {end - begin})};
      op.attrs.set("op", average.action->op);
      op.axis = average.action->axis;
      op.phase = Phase::step;
      op.site = site;
      recorder.record(0, std::move(op));
    }
  }
  for (size_t u = 0; u < state.storage.size(); ++u) {
    const UnitStorage& storage = state.storage[u];
    if (!storage.here || storage.compute < 0 || state.graph.units[u].parameters.empty()) continue;
    Op cast;
    cast.def = &ops::cast;
    cast.reads = {storage.master};
    cast.writes = {storage.compute};
    cast.attrs.set("dtype", std::string(dtype_name(state.plan.param_dtype)));
    cast.phase = Phase::step;
    cast.unit = state.graph.units[u].name;
    cast.site = site;
    recorder.record(0, std::move(cast));
  }
}

}  // namespace prun
