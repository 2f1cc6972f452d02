// The cores of this process's cpuset, and their division among the ranks of a node.
#pragma once
#include <vector>

namespace prun {

int usable_cores();  // at least 1; bind_to does not change it, because all ranks of the host share these cores
// Binds this process, which must be single-threaded, to these cores. Does nothing if the kernel refuses.
void bind_to(const std::vector<int>& cpus);
// Returns the intra-op threads of a rank: cores / local ranks, at least 1.
int threads_per_rank(int local_ranks);

}  // namespace prun
