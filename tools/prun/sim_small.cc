#include "sim_small.h"

#include <algorithm>
#include <cstdlib>

#include "build_job.h"
#include "spent_time.h"

namespace prun {

using simulate::Simulation;

int whole_setting(const Options& options, const std::string& name) {
  const auto found = options.settings.find(name);
  if (found == options.settings.end()) return 0;
  char* end = nullptr;
  const long value = std::strtol(found->second.c_str(), &end, 10);
  return *end == '\0' && value > 0 && value < 1000000 ? static_cast<int>(value) : 0;
}

SmallPlans::SmallPlans(const Options& options, const simulate::Cluster& cluster, int ranks, bool outline)
    : options_(options),
      cluster_(cluster),
      ranks_(ranks),
      all_layers_(whole_setting(options, "layers")),
      outline_(outline) {
  const int layers = std::min(all_layers_, 2);
  plan_ = outline_plan(with_layers(layers), ranks);  // the turns of many microbatches take long
  lengths_.microbatches = plan_.microbatches;
  if (plan_.pipeline) {
    lengths_.stages = plan_.mesh.size(plan_.pipeline->axis);
    lengths_.chunks = plan_.pipeline->chunks;
  }
  const int parts = lengths_.stages * lengths_.chunks;
  lengths_.layers = all_layers_ % parts == 0 ? all_layers_ / parts : 0;
}

double SmallPlans::ops() const {
  const int recorded = std::min(all_layers_, 2);
  const double nodes = static_cast<double>(plan_.graph.nodes.size());
  const double all = recorded == 0 ? nodes : std::max<double>(1, nodes / recorded) * all_layers_;
  return 3 * all * lengths_.microbatches;
}

Options SmallPlans::with_layers(int layers) const {
  Options small = options_;
  if (layers > 0) small.settings["layers"] = std::to_string(layers);
  return small;
}

PlanSizes SmallPlans::plan_sizes(const SmallSizes& sizes) const {
  PlanSizes small;
  for (const Axis& axis : plan_.mesh.axes())
    small.axes[axis.name] = plan_.pipeline && axis.name == plan_.pipeline->axis ? sizes.stages : axis.size;
  small.microbatches = sizes.microbatches;
  small.batch = plan_.data.global_batch / lengths_.microbatches * small.microbatches;
  return small;
}

const Plan& SmallPlans::recorded(const SmallSizes& sizes) {
  if (const auto found = recorded_.find(sizes); found != recorded_.end()) return found->second;
  std::vector<SmallSizes> together = {sizes};
  for (const int microbatches : likely_ ? likely_(sizes) : std::vector<int>())
    if (SmallSizes other{sizes.stages, microbatches, sizes.layers}; other != sizes && !recorded_.contains(other))
      together.push_back(other);
  std::vector<PlanSizes> all;
  for (const SmallSizes& each : together) all.push_back(plan_sizes(each));
  std::vector<Plan> plans =
      record_plans(with_layers(sizes.stages * lengths_.chunks * sizes.layers), ranks_, std::move(all));
  for (size_t i = 0; i < plans.size(); ++i) recorded_[together[i]] = std::move(plans[i]);
  return recorded_.at(sizes);
}

Simulation SmallPlans::simulated(const SmallSizes& sizes, Memory memory, bool verified, bool only_memory) {
  const Plan& plan = recorded(sizes);
  const int ranks = plan.mesh.ranks();
  const Job job = memory == Memory::packed ? compile_plan(options_, plan, ranks, verified)
                                           : compile_roughly(options_, plan, memory == Memory::counted);
  const TimeSpent time("clock");
  return simulate::simulate(job, cluster_, {.every_rank = options_.sim.every_rank, .only_memory = only_memory});
}

const Simulation& SmallPlans::at(const SmallSizes& sizes) {
  if (const auto found = walked_.find(sizes); found != walked_.end()) return found->second;
  const bool first = walked_.empty();
  if (!first || outline_)
    return walked_[sizes] = simulated(sizes, outline_ ? Memory::counted : Memory::none, false, false);
  packed_memory_[sizes] = simulated(sizes, Memory::packed, true, false);
  return walked_[sizes] = packed_memory_[sizes];
}

const Simulation& SmallPlans::memory_at(const SmallSizes& sizes, bool packed) {
  Simulations& known = packed ? packed_memory_ : counted_memory_;
  if (const auto found = known.find(sizes); found != known.end()) return found->second;
  return known[sizes] = simulated(sizes, packed ? Memory::packed : Memory::counted, false, true);
}

}  // namespace prun
