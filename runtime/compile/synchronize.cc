// The sync body: parameters that each rank has trained on its own for some steps become their average again.
//
// Parameters of units that are not sharded lie side by side, so neighbours travel in one collective.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "compile/build.h"
#include "compile/draft.h"
#include "compile/record.h"

namespace prun {
namespace {

struct Average {
  const Intent* intent;
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

// What each intent averages on this rank.
std::vector<Average> averages_of(const Draft& draft) {
  std::vector<Average> averages;
  std::map<std::pair<std::string, std::string>, size_t> known;  // axis and reduction
  for (size_t u = draft.graph.units.size(); u-- > 0;) {         // the order of the layout
    const UnitState& state = draft.states[u];
    const Unit& unit = draft.graph.units[u];
    if (!state.here || unit.parameters.empty()) continue;
    for (const Strategy& strategy : draft.plan.strategies)
      for (const StrategyUnit& of : strategy.units)
        for (const Intent& intent : of.sync) {
          if (of.unit_class != unit.unit_class) continue;
          if (state.sharded)
            throw plan_error(fmt::format("the parameters of '{}' are sharded over '{}': there is nothing to average",
                                         unit.name, state.axis),
                             intent.site);
          auto [it, fresh] = known.try_emplace({intent.axis, intent.op}, averages.size());
          if (fresh) averages.push_back({&intent, {}});
          auto& ranges = averages[it->second].ranges;
          int64_t begin = state.bucket_start, end = begin + state.shard;
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
      for (const Intent& intent : unit.sync)
        if (unit.unit_class == unit_class && intent.axis == axis) return true;
  return false;
}

void synchronize(Draft& draft) {
  Program& program = draft.program;
  program.schedule.sync_every = sync_steps(draft.plan);
  if (program.schedule.sync_every == 0) return;
  OpRecorder recorder(program, program.sync);
  recorder.stream("compute");
  Site site;
  for (const Average& average : averages_of(draft)) {
    site = average.intent->site;
    for (auto [begin, end] : average.ranges) {
      Op op;
      op.def = &op_def("all_reduce");
      op.reads = op.writes = {add_view(program, "params.synced", draft.flat_params, begin, {end - begin})};
      op.attrs.set("op", average.intent->op);
      op.axis = average.intent->axis;
      op.phase = Phase::step;
      op.site = site;
      recorder.record(0, std::move(op));
    }
  }
  for (size_t u = 0; u < draft.states.size(); ++u) {
    const UnitState& state = draft.states[u];
    if (!state.here || state.compute < 0 || draft.graph.units[u].parameters.empty()) continue;
    Op cast;
    cast.def = &op_def("cast");
    cast.reads = {state.master};
    cast.writes = {state.compute};
    cast.attrs.set("dtype", std::string(dtype_name(draft.plan.param_dtype)));
    cast.phase = Phase::step;
    cast.unit = draft.graph.units[u].name;
    cast.site = site;
    recorder.record(0, std::move(cast));
  }
}

}  // namespace prun
