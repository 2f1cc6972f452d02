// Reads the OOM counter of this process's cgroup (v2: memory.events, v1: memory.oom_control), otherwise the machine's,
// /proc/vmstat. SIGKILL has no sender, so only the counter reveals the OOM killer.
#include <fstream>

#include "launch/preflight.h"

namespace prun {
namespace {

bool has_counter(const std::string& path, int64_t* value) {
  std::ifstream file(path);
  std::string word;
  while (file >> word)
    if (word == "oom_kill" && file >> *value) return true;
  return false;
}

}  // namespace

OomWatch::OomWatch(const std::string& root) {
  std::ifstream own(root + "/proc/self/cgroup");
  std::vector<std::string> candidates;
  for (std::string line; std::getline(own, line);) {  // "0::/a/b" or "7:memory:/a/b"
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) candidates.push_back(root + "/sys/fs/cgroup" + path + "/memory.events");
    if (controllers == "memory") candidates.push_back(root + "/sys/fs/cgroup/memory" + path + "/memory.oom_control");
  }
  int64_t value;
  for (const std::string& path : candidates)
    if (has_counter(path, &value)) files_.push_back(path);
  if (files_.empty()) files_.push_back(root + "/proc/vmstat");
  last_ = count();
}

int64_t OomWatch::count() const {
  int64_t sum = 0, value;
  for (const std::string& path : files_)
    if (has_counter(path, &value)) sum += value;
  return sum;
}

bool OomWatch::killed_since() {
  int64_t now = count();
  bool grown = now > last_;
  last_ = now;
  return grown;
}

}  // namespace prun
