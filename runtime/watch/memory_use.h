// Memory of the job's processes as counted by the kernel.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace prun {

// Returns the PSS of a process ("self" or its pid) in bytes: shared pages are divided among their users, so peers'
// arenas are not counted N times. 0: unknown.
uint64_t proportional_set_size(const std::string& process);

// The maximum over several processes, sampled rarely because the kernel walks all their pages.
class MemoryWatch {
 public:
  void open(const std::vector<int>& processes) { processes_ = processes; }
  uint64_t most();  // at most 1 s old, or 100 times the duration of a sample

 private:
  std::vector<int> processes_;
  uint64_t most_ = 0;
  double next_s_ = 0;
};

}  // namespace prun
