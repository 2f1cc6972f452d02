#include "predict/small_plans.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "compile/partition.h"
#include "job/build.h"
#include "job/spent_time.h"

namespace prun {

using simulate::Simulation;

int whole_setting(const JobSpec& spec, const std::string& name) {
  const auto found = spec.settings.find(name);
  if (found == spec.settings.end()) return 0;
  char* end = nullptr;
  const long value = std::strtol(found->second.c_str(), &end, 10);
  return *end == '\0' && value > 0 && value < 1000000 ? static_cast<int>(value) : 0;
}

SmallPlans::SmallPlans(const JobSpec& spec, const simulate::Cluster& cluster, int ranks, SmallPlansOptions how)
    : spec_(spec), cluster_(cluster), ranks_(ranks), all_layers_(whole_setting(spec, "layers")), how_(how) {
  const int layers = std::min(all_layers_, 2);
  plan_ = outline_plan(with_layers(layers), ranks);  // recording the slots of many microbatches is slow
  lengths_.microbatches = plan_.microbatches;
  if (plan_.pipeline) {
    lengths_.stages = plan_.mesh.size(plan_.pipeline->axis);
    lengths_.chunks = plan_.pipeline->chunks;
  }
  find_layers();
}

// Sets the layers of a stage, if stages share them equally, apart from those that a layout lists.
void SmallPlans::find_layers() {
  std::map<std::string, bool> is_layer;  // by class
  for (const std::vector<bool> layer = prun::find_layers(plan_.graph); const CallId call : plan_.graph.calls.ids())
    is_layer[plan_.graph.units[plan_.graph.calls[call].unit].unit_class] = layer[call.index()];
  for (const Strategy& strategy : plan_.strategies)
    for (const StrategyUnit& unit : strategy.units)
      if (!unit.recompute_stages.empty()) return;
  bool fills = !plan_.pipeline || plan_.pipeline->layout.empty();
  if (plan_.pipeline) {
    if (plan_.pipeline->split_by_flops || !plan_.pipeline->stage_layers.empty()) return;
    for (const LayoutStage& stage : plan_.pipeline->layout) {
      fills = fills || stage.fill;
      lengths_.listed_stages += stage.fill ? 0 : 1;
      for (const LayoutUnits& units : stage.units) {
        const auto found = is_layer.find(units.name);
        if (found == is_layer.end()) return;  // a layer by its own name, which a smaller plan may lack
        lengths_.listed_layers += found->second ? units.count : 0;
      }
    }
  }
  const int shared = all_layers_ - lengths_.listed_layers;
  const int parts = lengths_.stages * lengths_.chunks - lengths_.listed_stages;
  if (fills && parts > 0 && shared > 0 && shared % parts == 0) lengths_.layers = shared / parts;
}

double SmallPlans::ops() const {
  const int recorded = std::min(all_layers_, 2);
  const double nodes = static_cast<double>(plan_.graph.nodes.size());
  const double all = recorded == 0 ? nodes : std::max<double>(1, nodes / recorded) * all_layers_;
  return 3 * all * lengths_.microbatches;
}

JobSpec SmallPlans::with_layers(int layers) const {
  JobSpec small = spec_;
  if (layers > 0) small.settings["layers"] = std::to_string(layers);
  return small;
}

PlanSizes SmallPlans::plan_sizes(const SmallLengths& sizes) const {
  PlanSizes small;
  for (const Axis& axis : plan_.mesh.axes())
    small.axes[axis.name] = plan_.pipeline && axis.name == plan_.pipeline->axis ? sizes.stages : axis.size;
  small.microbatches = sizes.microbatches;
  small.batch = plan_.data.global_batch / lengths_.microbatches * small.microbatches;
  return small;
}

const Plan& SmallPlans::recorded(const SmallLengths& sizes) {
  if (const auto found = recorded_.find(sizes); found != recorded_.end()) return found->second;
  std::vector<SmallLengths> together = {sizes};
  for (const int microbatches : likely_ ? likely_(sizes) : std::vector<int>())
    if (SmallLengths other{sizes.stages, microbatches, sizes.layers}; other != sizes && !recorded_.contains(other))
      together.push_back(other);
  std::vector<PlanSizes> all;
  for (const SmallLengths& each : together) all.push_back(plan_sizes(each));
  std::vector<Plan> plans =
      record_plans(with_layers(lengths_.layers_of(sizes.stages, sizes.layers)), ranks_, std::move(all));
  for (size_t i = 0; i < plans.size(); ++i) recorded_[together[i]] = std::move(plans[i]);
  return recorded_.at(sizes);
}

Simulation SmallPlans::simulated(const SmallLengths& sizes, Memory memory, bool verified, bool only_memory) {
  const Plan& plan = recorded(sizes);
  const int ranks = plan.mesh.ranks();
  const Job job = memory == Memory::packed ? compile_plan(spec_, plan, ranks, verified)
                                           : compile_roughly(spec_, plan, memory == Memory::counted);
  const TimeSpent time("clock");
  return simulate::simulate(job, cluster_, {.every_rank = how_.every_rank, .only_memory = only_memory});
}

const Simulation& SmallPlans::at(const SmallLengths& sizes) {
  if (const auto found = walked_.find(sizes); found != walked_.end()) return found->second;
  const bool first = walked_.empty();
  if (!first || how_.outline)
    return walked_[sizes] = simulated(sizes, how_.outline ? Memory::counted : Memory::none, false, false);
  packed_memory_[sizes] = simulated(sizes, Memory::packed, true, false);
  return walked_[sizes] = packed_memory_[sizes];
}

const Simulation& SmallPlans::memory_at(const SmallLengths& sizes, bool packed) {
  Simulations& known = packed ? packed_memory_ : counted_memory_;
  if (const auto found = known.find(sizes); found != known.end()) return found->second;
  return known[sizes] = simulated(sizes, packed ? Memory::packed : Memory::counted, false, true);
}

std::vector<RoleBytes> SmallPlans::memory_of(const SmallLengths& sizes, const std::vector<int>& ranks, bool packed) {
  const Plan& plan = recorded(sizes);
  const Job job =
      packed ? compile_plan(spec_, plan, plan.mesh.ranks(), false, ranks) : compile_roughly(spec_, plan, true, ranks);
  std::vector<RoleBytes> bytes;
  for (const int rank : ranks) bytes.push_back(std::to_array(job.classes[static_cast<size_t>(rank)].role_bytes));
  return bytes;
}

}  // namespace prun
