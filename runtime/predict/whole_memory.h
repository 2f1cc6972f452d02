// The arenas of a plan's ranks as they run, where compiling it as it runs costs no more than simulating it small does:
// a long schedule is listed by one period, and few ranks of a pipeline are packed where the others follow from them.
#pragma once
#include <array>
#include <map>
#include <vector>

#include "ir/plan.h"
#include "ir/program.h"
#include "job/job_spec.h"
#include "predict/small_plans.h"

namespace prun {

using RoleBytes = std::array<int64_t, kRoles>;

class WholeMemory {
 public:
  // `options` outlives this.
  WholeMemory(const JobSpec& spec, int ranks, const SmallPlans& small);

  // Whether it is short enough to be packed. What follows is asked of such plans only.
  bool affordable() const { return affordable_; }
  // By rank of the pipeline. Those that need one number of bytes less than the one before are not all packed.
  std::vector<RoleBytes> all();
  const RoleBytes& of(int rank);
  bool repeats() const { return repeats_; }  // one that was placed lists a period, so it has rings of buffers

 private:
  bool affords(double microbatches) const;
  void pack(const std::vector<int>& ranks);
  bool on_line(int low, int high, int rank) const;
  void fill(int low, int high);

  const JobSpec& spec_;
  const int stages_, microbatches_;
  const double ops_;  // of a microbatch
  Plan plan_;         // of as many microbatches, or of fewer that list the same
  bool affordable_ = false, repeats_ = false;
  std::map<int, RoleBytes> known_;
};

}  // namespace prun
