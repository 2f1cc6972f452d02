// check_machine uses a lower bound; the compiler predicts the needs of a plan. Without the check a typo in --nproc
// would fork until memory is exhausted.
#include "launch/preflight.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace {

constexpr int64_t kLeastPerRank = int64_t{2} << 20;  // page tables, stacks and the private pages of an idle rank
constexpr int64_t kDescriptorsPerRank = 2;           // in the launcher: pidfd and control socket
constexpr int64_t kOtherDescriptors = 32;

// Returns the number in a file, after `key` if given; `otherwise` if there is no number ("max").
int64_t number_in(const std::string& path, int64_t otherwise, std::string_view key = "") {
  std::ifstream file(path);
  std::string word;
  while (!key.empty() && word != key && file >> word) {
  }
  int64_t value;
  return file >> value ? value : otherwise;
}

}  // namespace

int64_t available_memory(const std::string& root) {
  int64_t least = number_in(root + "/proc/meminfo", INT64_MAX / 1024, "MemAvailable:") * 1024;
  std::ifstream own(root + "/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    if (line.rfind("0::/", 0) != 0) continue;
    // The cgroup and its ancestors. In a container's namespace the root is the container's cgroup, with its limit.
    for (std::string path = line == "0::/" ? "" : line.substr(3);; path.resize(path.rfind('/'))) {
      std::string group = root + "/sys/fs/cgroup" + path;
      int64_t limit = number_in(group + "/memory.max", INT64_MAX);
      // The page cache counts as used, but the kernel reclaims it.
      int64_t used = number_in(group + "/memory.current", 0) - number_in(group + "/memory.stat", 0, "inactive_file");
      if (limit != INT64_MAX) least = std::min(least, limit - used);
      if (path.empty()) break;
    }
  }
  return least;
}

int64_t total_memory() { return number_in("/proc/meminfo", 0, "MemTotal:") * 1024; }

void check_machine(int ranks, size_t recorder_bytes, bool capture_output) {
  // A ring buffer fills only slowly.
  int64_t needed = ranks * (kLeastPerRank + static_cast<int64_t>(recorder_bytes) / 8);
  int64_t available = available_memory();
  if (needed > available)
    throw Error(Exit::out_of_memory, fmt::format("{} ranks on this machine need at least {}, and {} are available; use "
                                                 "fewer (--nproc)",
                                                 ranks, human_bytes(needed), human_bytes(available)));
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  int64_t descriptors = ranks * (kDescriptorsPerRank + (capture_output ? 2 : 0)) + kOtherDescriptors;
  if (files.rlim_max != RLIM_INFINITY && descriptors > static_cast<int64_t>(files.rlim_max))
    throw usage_error(fmt::format("{} ranks need {} open files, and the limit is {} (ulimit -Hn); use fewer (--nproc)",
                                  ranks, descriptors, files.rlim_max));
}

}  // namespace prun
