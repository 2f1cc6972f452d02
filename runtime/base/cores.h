// The cores of this process's cpuset, and their division among the ranks of a node.
#pragma once

namespace prun {

int usable_cores();  // at least 1
// Intra-op threads of a rank: cores / local ranks, at least 1.
int threads_per_rank(int local_ranks);

}  // namespace prun
