// The cores of this process's cpuset, and their division among the ranks of a node.
#pragma once
#include <vector>

namespace prun {

int usable_cores();  // at least 1; of a rank that is bound, what its host's ranks have together
// Binds this process, which has no other threads yet, to some of them. What the kernel refuses is left as it is.
void bind_to(const std::vector<int>& cpus);
// Intra-op threads of a rank: cores / local ranks, at least 1.
int threads_per_rank(int local_ranks);

}  // namespace prun
