// How the cores of this process's cpuset are divided among the ranks of a node.
#pragma once
#include <sched.h>

#include <algorithm>

namespace prun {

inline int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// Intra-op threads of a rank: cores / local ranks, at least 1.
inline int threads_per_rank(int local_ranks) { return std::max(1, usable_cores() / local_ranks); }

}  // namespace prun
