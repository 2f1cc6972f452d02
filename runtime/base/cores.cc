// Reads the cpuset at each call, because a launcher may be moved while it runs.
#include "base/cores.h"

#include <sched.h>

#include <algorithm>

namespace prun {
namespace {

int before_binding = 0;  // cores of all ranks of the host; 0 = not bound

}  // namespace

int usable_cores() {
  if (before_binding > 0) return before_binding;
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

void bind_to(const std::vector<int>& cpus) {
  const int before = usable_cores();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) == 0) before_binding = before;
}

int threads_per_rank(int local_ranks) { return std::max(1, usable_cores() / local_ranks); }

}  // namespace prun
