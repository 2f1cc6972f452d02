// A plan at chosen sizes: a few stages, microbatches and layers are compiled and walked, once each.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/plan.h"
#include "ir/program.h"
#include "job/job_spec.h"
#include "simulate/simulate.h"

namespace prun {

// Compiling, verifying and walking this many ops takes about a second; larger plans are extrapolated.
constexpr double kOpsSimulatedWhole = 40000;

// The sizes of a plan that may repeat.
struct PlanLengths {
  int stages = 1;  // ranks of the pipeline
  int chunks = 1;
  int microbatches = 1;
  int layers = 0;  // per stage and chunk; 0 = unknown, or not distributed equally
  // The stages that a layout lists beside "...", and their layers, which `layers` does not count.
  int listed_stages = 0, listed_layers = 0;

  // Returns the layers of the whole model if `ranks` stages have `each` layers in a stage that is not listed.
  int layers_of(int ranks, int each) const { return listed_layers + (ranks * chunks - listed_stages) * each; }
};

struct SmallLengths {
  int stages = 1, microbatches = 1;
  int layers = 0;                                         // per stage and chunk; 0 = the plan's own
  auto operator<=>(const SmallLengths&) const = default;  // NOLINT(modernize-use-nullptr): the compiler's own 0
};

// Returns a setting (--set) that is a whole number above 0; otherwise 0.
int whole_setting(const JobSpec& spec, const std::string& name);

struct SmallPlansOptions {
  bool outline = false;     // memory is counted, not packed
  bool every_rank = false;  // every rank is simulated
};

using RoleBytes = std::array<int64_t, kRoles>;

class SmallPlans {
 public:
  // Records the plan without the slots of its pipeline schedule, and with at most two layers if --set gives it
  // `layers`. `spec` and `cluster` outlive this.
  SmallPlans(const JobSpec& spec, const simulate::Cluster& cluster, int ranks, SmallPlansOptions how = {});

  const Plan& plan() const { return plan_; }  // as recorded
  const PlanLengths& lengths() const { return lengths_; }
  int all_layers() const { return all_layers_; }  // --set layers; 0 = not set
  double ops() const;                             // approximate ops in a step of the whole plan
  // Returns further numbers of microbatches that are likely to be requested with a size; one script records them all.
  using Likely = std::function<std::vector<int>(const SmallLengths& sizes)>;
  void record_together(Likely microbatches) { likely_ = std::move(microbatches); }
  // Returns the simulation of a size. The first program is packed and verified; later ones have no memory, except in an
  // outline, which counts it.
  const simulate::Simulation& at(const SmallLengths& sizes);
  // Returns the memory only, without a walk. `packed`: with offsets as in a run, which is slow; otherwise the largest
  // sum of live buffers.
  const simulate::Simulation& memory_at(const SmallLengths& sizes, bool packed);
  // Returns the arenas of some ranks of the pipeline, whose programs alone are compiled.
  std::vector<RoleBytes> memory_of(const SmallLengths& sizes, const std::vector<int>& ranks, bool packed);

 private:
  enum class Memory { packed, counted, none };
  using Simulations = std::map<SmallLengths, simulate::Simulation>;
  JobSpec with_layers(int layers) const;
  void find_layers();
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
