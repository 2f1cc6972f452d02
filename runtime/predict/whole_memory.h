// The arenas of a plan's ranks as they run, for plans whose real size costs no more to compile than a small simulation:
// a long schedule is listed by one period, and the middle ranks of a pipeline are interpolated.
#pragma once
#include <map>
#include <set>
#include <vector>

#include "ir/plan.h"
#include "ir/program.h"
#include "job/job_spec.h"
#include "predict/small_plans.h"

namespace prun {

class WholeMemory {
 public:
  // `spec` outlives this.
  WholeMemory(const JobSpec& spec, int ranks, const SmallPlans& small);

  // Returns whether the plan is short enough to be packed; required by the functions below.
  bool affordable() const { return affordable_; }
  // Returns the memory by rank of the pipeline. Ranks whose bytes fall linearly are interpolated.
  std::vector<RoleBytes> all();
  const RoleBytes& of(int rank);
  bool repeats() const { return repeats_; }  // a packed program lists one period, so it has ring buffers

 private:
  bool affords(double microbatches) const;
  void pack(const std::vector<int>& ranks);
  bool on_line(int low, int high, int rank) const;
  bool is_line(int low, int high) const;
  void fill(int low, int high);

  const JobSpec& spec_;
  const int stages_, microbatches_;
  const double ops_;  // ops of a microbatch
  Plan plan_;         // with all microbatches, or fewer that list the same period
  bool affordable_ = false, repeats_ = false;
  std::map<int, RoleBytes> known_;
  std::set<int> packed_;  // ranks of `known_` that are not interpolated
};

}  // namespace prun
