// A step's time and memory are linear in stages, microbatches and layers per stage beyond a few of each, except for the
// cross terms of layers with the others. Therefore six small plans determine all others.
#include "predict/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "base/text.h"
#include "job/build.h"
#include "predict/small_plans.h"
#include "simulate/simulate.h"

namespace prun {
namespace {

using simulate::Cluster;
using simulate::Simulation;

constexpr double kOpsEstimatedWhole = 2000;  // as fast as six small plans
constexpr int kFewLayers = 2;
constexpr double kHopeless = 1.3;  // relative to memory

struct Figure {
  double step_s = 0, peak_bytes = 0, memory_bytes = 0;
};

Figure operator+(const Figure& a, const Figure& b) {
  return {a.step_s + b.step_s, a.peak_bytes + b.peak_bytes, a.memory_bytes};
}
Figure operator*(double factor, const Figure& a) { return {factor * a.step_s, factor * a.peak_bytes, a.memory_bytes}; }

Figure figure_of(const Simulation& simulation) {
  const simulate::ClassResult& most = simulate::most_memory(simulation);
  return {simulation.step_s, static_cast<double>(most.peak_bytes), most.memory_bytes};
}

// Extrapolates linearly from the figures at two sizes to a third.
Figure line(int low, const Figure& at_low, int high, const Figure& at_high, int wanted) {
  const double way = static_cast<double>(wanted - low) / (high - low);
  return (1 - way) * at_low + way * at_high;
}

class SmallSizesEstimate {
 public:
  SmallSizesEstimate(SmallPlans& small, bool stages_differ) : small_(small), all_(small.lengths()) {
    const bool pipeline = all_.stages > 1, rounds = all_.chunks > 1;
    if (stages_differ || all_.stages <= 3) few_stages_ = more_stages_ = all_.stages;
    few_microbatches_ = !pipeline ? 2 : rounds ? few_stages_ : more_stages_ + 1;
    more_microbatches_ = few_microbatches_ + (rounds ? few_stages_ : 1);
    if (rounds && few_stages_ != more_stages_) few_microbatches_ = 4, more_microbatches_ = 6;  // whole rounds for both
    if (all_.microbatches <= more_microbatches_) few_microbatches_ = more_microbatches_ = all_.microbatches;
    few_layers_ = pipeline ? 1 : 2;
    more_layers_ = few_layers_ + 1;
    if (all_.layers <= more_layers_) few_layers_ = more_layers_ = all_.layers;
    small.record_together([this](const SmallLengths& sizes) {
      return sizes.stages == few_stages_ ? std::vector{few_microbatches_, more_microbatches_} : std::vector<int>();
    });
  }

  Figure run() {
    const Figure few = at_layers(few_layers_);
    if (few_layers_ == more_layers_) return few;
    const Figure few_base = base(few_layers_), more_base = base(more_layers_);
    const Figure all_base = line(few_layers_, few_base, more_layers_, more_base, all_.layers);
    // Skips further plans if the memory is exceeded by far even in a short pipeline.
    if (all_base.peak_bytes > kHopeless * all_base.memory_bytes) {
      const double way = all_base.step_s / few_base.step_s;
      return {way * few.step_s, all_base.peak_bytes, all_base.memory_bytes};
    }
    return line(few_layers_, few, more_layers_, at_layers(more_layers_), all_.layers);
  }

 private:
  Figure at(int stages, int microbatches, int layers) { return figure_of(small_.at({stages, microbatches, layers})); }
  Figure base(int layers) { return at(few_stages_, more_microbatches_, layers); }

  Figure at_layers(int layers) {
    const Figure here = base(layers);
    Figure sum = here;
    if (few_microbatches_ != more_microbatches_)
      sum = line(few_microbatches_, at(few_stages_, few_microbatches_, layers), more_microbatches_, here,
                 all_.microbatches);
    if (few_stages_ != more_stages_)
      sum = sum + line(few_stages_, here, more_stages_, at(more_stages_, more_microbatches_, layers), all_.stages) +
            -1.0 * here;
    return sum;
  }

  SmallPlans& small_;
  const PlanLengths all_;
  int few_stages_ = 2, more_stages_ = 3, few_microbatches_ = 0, more_microbatches_ = 0, few_layers_ = 0,
      more_layers_ = 0;
};

Figure whole_plan(const JobSpec& spec, const Cluster& cluster, int ranks) {
  const Job job = compile_plan(spec, record_plan(spec, ranks), ranks, false);
  return figure_of(simulate::simulate(job, cluster));
}

}  // namespace

Estimate estimate_plan(const JobSpec& spec, const Cluster& cluster) {
  const std::clock_t begin = std::clock();
  const int ranks = spec.ranks();
  SmallPlans small(spec, cluster, ranks, {.outline = true});
  const PlanLengths& all = small.lengths();
  const int parts = all.stages * all.chunks;
  Figure figure;
  if (all.layers > 0 && small.plan().programs.empty() && small.ops() > kOpsEstimatedWhole) {
    figure = SmallSizesEstimate(small, !cluster.nodes.empty()).run();
  } else {
    const bool listed = small.plan().pipeline && !small.plan().pipeline->stage_layers.empty();
    if (!listed && small.all_layers() % parts != 0 && small.ops() > kOpsSimulatedWhole)
      throw plan_error(fmt::format("{} are not shared equally by {}", counted(small.all_layers(), "layer"),
                                   counted(parts, "stage")));
    figure = whole_plan(spec, cluster, ranks);
  }
  const double effort_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  return {std::max(0.0, figure.step_s), std::max(0.0, figure.peak_bytes), figure.memory_bytes, effort_s};
}

size_t plan_digest(const JobSpec& spec, bool whole) {
  JobSpec one = spec;
  if (!whole && whole_setting(spec, "layers") > kFewLayers) one.settings["layers"] = std::to_string(kFewLayers);
  size_t digest = 0;
  outline_plan(one, spec.ranks(), &digest);
  return digest;
}

}  // namespace prun
