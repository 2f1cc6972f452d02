// --bind core|numa|none: which cores of this host a rank may use, by hwloc.
//
// Left to itself (auto), prun binds ranks to the NUMA nodes of a host that has several, and to nothing where it has
// one, where ranks are more than cores, or where somebody else has bound this process already (a cpuset, mpirun, srun).
#pragma once
#include <string>
#include <vector>

namespace prun {

class Binding {
 public:
  Binding() = default;  // binds nothing
  // For so many ranks of this host. Throws usage_error where `how` was asked for and there are fewer cores than ranks.
  Binding(const std::string& how, int local_ranks);
  // In the rank's process, before it has threads, which inherit it.
  void apply(int local_rank) const;
  // "cores 0-3, 4-7" in the order of ranks; "" where nothing is bound.
  const std::string& text() const { return text_; }

 private:
  std::vector<std::vector<int>> cpus_;  // of each local rank; none: not bound
  std::string text_;
};

std::string check_bind(const std::string& how);  // throws usage_error; returns it

}  // namespace prun
