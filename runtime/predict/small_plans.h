// A plan at sizes of one's own choosing: a few stages, microbatches and layers are compiled and walked, once each.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/plan.h"
#include "job/job_spec.h"
#include "simulate/simulate.h"

namespace prun {

// Compiling, verifying and walking so many takes about a second: above, sizes that repeat are simulated small.
constexpr double kOpsSimulatedWhole = 40000;

// The sizes of a plan that may repeat.
struct PlanLengths {
  int stages = 1;  // ranks of the pipeline
  int chunks = 1;
  int microbatches = 1;
  int layers = 0;  // of a stage and chunk; 0: not known, or they are not shared equally
};

struct SmallLengths {
  int stages = 1, microbatches = 1;
  int layers = 0;                                         // of a stage and chunk; 0: the plan's own
  auto operator<=>(const SmallLengths&) const = default;  // NOLINT(modernize-use-nullptr): the compiler's own 0
};

// A setting (--set) that is a whole number above 0; else 0.
int whole_setting(const JobSpec& spec, const std::string& name);

struct SmallPlansOptions {
  bool outline = false;     // nothing is packed
  bool every_rank = false;  // no rank stands for others
};

class SmallPlans {
 public:
  // Records the plan, without the turns of its pipeline and with two layers at most where --set gives it `layers`.
  // `spec` and `cluster` outlive this.
  SmallPlans(const JobSpec& spec, const simulate::Cluster& cluster, int ranks, SmallPlansOptions how = {});

  const Plan& plan() const { return plan_; }  // as it was recorded
  const PlanLengths& lengths() const { return lengths_; }
  int all_layers() const { return all_layers_; }  // --set layers; or 0
  double ops() const;                             // of a step of the whole plan, about
  // Numbers of microbatches that are likely to be asked for, too, where one size is: they are recorded by one script.
  using Likely = std::function<std::vector<int>(const SmallLengths& sizes)>;
  void record_together(Likely microbatches) { likely_ = std::move(microbatches); }
  // The first of these programs is placed and verified. Others have no memory, but in an outline, where it is counted.
  const simulate::Simulation& at(const SmallLengths& sizes);
  // The memory alone, which is not walked. `packed`: as it would run, which takes long; else what lives at once.
  const simulate::Simulation& memory_at(const SmallLengths& sizes, bool packed);

 private:
  enum class Memory { packed, counted, none };
  using Simulations = std::map<SmallLengths, simulate::Simulation>;
  JobSpec with_layers(int layers) const;
  PlanSizes plan_sizes(const SmallLengths& sizes) const;
  const Plan& recorded(const SmallLengths& sizes);
  simulate::Simulation simulated(const SmallLengths& sizes, Memory memory, bool verified, bool only_memory);

  const JobSpec& spec_;
  const simulate::Cluster& cluster_;
  const int ranks_, all_layers_;
  const SmallPlansOptions how_;
  Plan plan_;
  PlanLengths lengths_;
  Likely likely_;
  std::map<SmallLengths, Plan> recorded_;
  Simulations walked_, packed_memory_, counted_memory_;
};

}  // namespace prun
