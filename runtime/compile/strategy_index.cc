// One pass over the strategies of a plan fills the index.
#include "compile/strategy_index.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"

namespace prun {

StrategyIndex::StrategyIndex(const Plan& plan) : plan_(plan) {
  for (int s = 0; s < std::ssize(plan.strategies); ++s)
    for (const StrategyUnit& unit : plan.strategies[s].units) {
      ClassStrategies& all = classes_[unit.unit_class];
      all.parts.push_back({&plan.strategies[s], &unit});
      all.recompute = all.recompute || unit.recompute;
      all.recompute_whole = all.recompute_whole || unit.recompute_whole;
      all.keeps_small_whole = all.keeps_small_whole || unit.shard_least > 0;
      all.synchronizes = all.synchronizes || !unit.sync.empty();
      if (unit.offload && !all.offload) all.offload = &unit;
      for (const Hook& hook : unit.hooks) {
        all.hooks.push_back({s, &hook});
        for (const HookAction& action : hook.actions) {
          const bool scatters = action.kind == ops::reduce_scatter.name;
          if (scatters && !all.reduce_scatter) all.reduce_scatter = &action;
          if (scatters || action.kind == ops::all_reduce.name) gradient_stream_ = action.stream;
        }
      }
    }
}

const ClassStrategies& StrategyIndex::of(const Unit& unit) const {
  static const ClassStrategies none;
  const auto found = classes_.find(unit.unit_class);
  return found == classes_.end() ? none : found->second;
}

bool StrategyIndex::splits_data(const std::string& axis) const {
  return std::any_of(plan_.strategies.begin(), plan_.strategies.end(), [&](const Strategy& strategy) {
    return strategy.splits != Splits::nothing &&
           std::find(strategy.axes.begin(), strategy.axes.end(), axis) != strategy.axes.end();
  });
}

const StrategyUnit* ClassStrategies::sharding() const {
  const Part* found = nullptr;
  for (const Part& part : parts) {
    if (!part.unit->sharded) continue;
    if (found)
      throw plan_error(fmt::format("the parameters of '{}' are sharded twice: over '{}' by {} at {}, and over '{}' by "
                                   "{} here",
                                   part.unit->unit_class, found->unit->shard_axis, found->strategy->name,
                                   found->strategy->site.text(), part.unit->shard_axis, part.strategy->name),
                       part.strategy->site);
    found = &part;
  }
  return found ? found->unit : nullptr;
}

bool ClassStrategies::synchronizes_over(const std::string& axis) const {
  for (const Part& part : parts)
    for (const HookAction& action : part.unit->sync)
      if (action.axis == axis) return true;
  return false;
}

}  // namespace prun
