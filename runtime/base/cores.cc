// The cpuset is asked each time: a launcher may be moved while it runs.
#include "base/cores.h"

#include <sched.h>

#include <algorithm>

namespace prun {

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

int threads_per_rank(int local_ranks) { return std::max(1, usable_cores() / local_ranks); }

}  // namespace prun
