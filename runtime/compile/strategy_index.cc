// One pass over the strategies of a plan fills the index.
#include "compile/strategy_index.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"

namespace prun {
namespace {

bool reduces_gradients(const StrategyUnit& unit) {
  for (const Hook& hook : unit.hooks)
    for (const HookAction& action : hook.actions)
      if (action.kind == ops::all_reduce.name && action.target != "params") return true;
  return false;
}

bool works_alone(const Plan& plan, const Strategy& strategy) {
  return std::all_of(strategy.axes.begin(), strategy.axes.end(),
                     [&](const std::string& axis) { return plan.mesh.size(axis) == 1; });
}

// Returns the strategy that shards the parameters of a class of units: the first one with several ranks, otherwise the
// first one.
std::map<std::string, int> sharding_strategies(const Plan& plan) {
  std::map<std::string, int> of_class;
  for (const bool alone : {false, true})
    for (int s = 0; s < std::ssize(plan.strategies); ++s)
      for (const StrategyUnit& unit : plan.strategies[s].units)
        if (unit.sharded && works_alone(plan, plan.strategies[s]) == alone) of_class.try_emplace(unit.unit_class, s);
  return of_class;
}

// Moves the hooks of strategies that all-reduce gradients after the hooks of the strategy that shards the parameters.
// The reduce-scatter then comes first, so that the all-reduces are of a shard. The plan's list may have any order.
void shard_before_other_sums(ClassStrategies& all, const std::map<int, const StrategyUnit*>& unit_of_strategy) {
  const auto shards = std::find_if(unit_of_strategy.begin(), unit_of_strategy.end(),
                                   [](const auto& one) { return one.second->sharded; });
  if (shards == unit_of_strategy.end()) return;
  const auto last = std::find_if(all.hooks.rbegin(), all.hooks.rend(), [&](const ClassStrategies::Hooked& hooked) {
                      return hooked.strategy == shards->first;
                    }).base();
  std::stable_partition(all.hooks.begin(), last, [&](const ClassStrategies::Hooked& hooked) {
    return hooked.strategy >= shards->first || !reduces_gradients(*unit_of_strategy.at(hooked.strategy));
  });
}

}  // namespace

StrategyIndex::StrategyIndex(const Plan& plan) : plan_(plan) {
  std::map<std::string, std::map<int, const StrategyUnit*>> units;  // by class, by strategy
  const std::map<std::string, int> sharding = sharding_strategies(plan);
  for (int s = 0; s < std::ssize(plan.strategies); ++s)
    for (const StrategyUnit& unit : plan.strategies[s].units) {
      ClassStrategies& all = classes_[unit.unit_class];
      if (unit.sharded && sharding.at(unit.unit_class) != s && works_alone(plan, plan.strategies[s])) {
        all.unused.insert(s);
      } else {
        all.parts.push_back({&plan.strategies[s], &unit});
        units[unit.unit_class][s] = &unit;
      }
      if (unit.recompute) {
        const bool everywhere = unit.recompute_stages.empty() || (all.recompute && all.recompute_stages.empty());
        all.recompute_stages.insert(unit.recompute_stages.begin(), unit.recompute_stages.end());
        if (everywhere) all.recompute_stages.clear();
        all.recompute = true;
      }
      all.recompute_whole = all.recompute_whole || unit.recompute_whole;
      all.keeps_small_whole = all.keeps_small_whole || unit.shard_least >= 0;
      all.synchronizes = all.synchronizes || !unit.sync.empty();
      if (unit.offload && !all.offload) all.offload = &unit;
      if (all.unused.contains(s)) continue;
      for (const Hook& hook : unit.hooks) {
        all.hooks.push_back({s, &hook});
        for (const HookAction& action : hook.actions) {
          const bool scatters = action.kind == ops::reduce_scatter.name;
          if (scatters && !all.reduce_scatter) all.reduce_scatter = &action;
          if (scatters || action.kind == ops::all_reduce.name) gradient_stream_ = action.stream;
        }
      }
    }
  for (auto& [unit_class, all] : classes_) shard_before_other_sums(all, units[unit_class]);
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
