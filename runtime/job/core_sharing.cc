#include "job/core_sharing.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace prun {
namespace {

// The machine, and which of its cores; machines are told apart by their boot.
std::string these_cores() {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  text.append(reinterpret_cast<const char*>(&cores), sizeof cores);
  return text;
}

}  // namespace

int ranks_on_these_cores(const RankStart& start) {
  if (start.local_ranks == start.ranks) return start.ranks;
  const std::string mine = these_cores();
  const std::vector<std::string> all = start.launcher->all_gather(mine);
  return static_cast<int>(std::count(all.begin(), all.end(), mine));
}

}  // namespace prun
