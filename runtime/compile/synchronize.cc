// Builds the synchronization body, which averages parameters that each rank has trained separately for some steps.
//
// Parameters of units that are not sharded are contiguous, so that neighbors share a collective.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "compile/compile_state.h"
#include "compile/edge_builder.h"
#include "compile/ir_build.h"

namespace prun {
namespace {

struct Average {
  const HookAction* action;
  std::vector<std::pair<int64_t, int64_t>> ranges;  // ranges of the flat parameters, ascending
  std::vector<TensorId> shards;                     // shards over one rank, which are whole
};

// Returns the period in steps; 0 = weights are not averaged, or each rank would average alone.
int64_t sync_steps(const Plan& plan) {
  int64_t every = 0;
  bool meet = false;
  for (const Strategy& strategy : plan.strategies)
    for (const StrategyUnit& unit : strategy.units) {
      if (unit.sync_every == 0) continue;
      if (every != 0 && unit.sync_every != every)
        throw plan_error(
            fmt::format("weights are averaged every {} steps here and every {} elsewhere: a plan has one rhythm",
                        unit.sync_every, every),
            strategy.site);
      every = unit.sync_every;
      for (const HookAction& action : unit.sync) meet = meet || plan.mesh.size(action.axis) > 1;
    }
  return meet ? every : 0;
}

// Returns the averages of each action on this rank.
std::vector<Average> averages_of(const CompileState& state) {
  std::vector<Average> averages;
  std::map<std::pair<std::string, std::string>, size_t> known;           // axis, reduction
  for (UnitId id = state.graph.units.last(); !id.none(); id = id - 1) {  // in the layout's order
    const UnitStorage& storage = state.storage[id];
    const Unit& unit = state.graph.units[id];
    if (!state.trains(id)) continue;
    for (const auto& [strategy, part] : state.strategies.of(unit).parts)
      for (const HookAction& action : part->sync) {
        if (state.plan.mesh.size(action.axis) == 1) continue;
        if (!state.shard_axis(id).empty())
          throw plan_error(fmt::format("the parameters of '{}' are averaged over '{}' here and sharded over '{}': "
                                       "averages between steps are of whole parameters, as ddp over '{}' keeps them",
                                       unit.name, action.axis, storage.axis, storage.axis),
                           action.site);
        auto [it, fresh] = known.try_emplace({action.axis, action.op}, averages.size());
        if (fresh) averages.push_back({&action, {}});
        if (storage.sharded) {
          averages[it->second].shards.push_back(storage.master);
          continue;
        }
        auto& ranges = averages[it->second].ranges;
        const int64_t begin = storage.bucket_start, end = begin + storage.shard;
        if (!ranges.empty() && ranges.back().second == begin)
          ranges.back().second = end;
        else
          ranges.emplace_back(begin, end);
      }
  }
  return averages;
}

}  // namespace

void synchronize(CompileState& state) {
  Program& program = state.program;
  const int64_t every = sync_steps(state.plan);
  if (every == 0) return;
  program.bodies.push_back({"synchronization", {every}, {}, {}, {}});
  EdgeBuilder edges(program, program.bodies.back());
  edges.stream("compute");
  Site site;
  for (const Average& average : averages_of(state)) {
    site = average.action->site;
    const auto reduce = [&](TensorId part) {
      edges.communicate("", make_all_reduce(part, average.action->op, average.action->axis, Phase::step, site));
    };
    for (auto [begin, end] : average.ranges)
      reduce(add_view(program, "params.synced", state.flat_params, begin, {end - begin}));
    for (const TensorId shard : average.shards) reduce(shard);
  }
  for (UnitId unit : state.graph.units.ids()) {
    const UnitStorage& storage = state.storage[unit];
    if (!state.trains(unit) || storage.compute.none()) continue;
    Op cast = make_cast(program, storage.master, storage.compute, Phase::step, site);
    cast.unit = state.unit_name(unit);
    edges.append(0, std::move(cast));
  }
}

}  // namespace prun
