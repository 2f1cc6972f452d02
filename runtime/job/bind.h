// --bind core|numa|none: binds ranks to cores of this host, read with hwloc.
//
// The default (auto) binds ranks to the NUMA nodes of a host that has several. It binds nothing on a host with one
// node, with more ranks than cores, or if this process is already bound (cpuset, mpirun, srun).
#pragma once
#include <string>
#include <vector>

namespace prun {

class Binding {
 public:
  Binding() = default;  // binds nothing
  // Binds `local_ranks` ranks of this host. Throws usage_error if `how` is core and there are fewer cores than ranks,
  // or if hwloc cannot read the requested kind.
  Binding(const std::string& how, int local_ranks);
  // Call in the rank's process before it has threads, which inherit the binding.
  void apply(int local_rank) const;
  // Returns "cores 0-3 | 4-7" in the order of ranks; "" if nothing is bound.
  const std::string& text() const { return text_; }

 private:
  std::vector<std::vector<int>> cpus_;  // by local rank; empty: not bound
  std::string text_;
};

std::string check_bind(const std::string& how);  // throws usage_error; returns it

}  // namespace prun
