// Memory of the job's processes as the kernel counts it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace prun {

// Bytes of a process ("self" or its id), pages that others map too divided among them: peers' arenas are not counted N
// times. 0: not known.
uint64_t proportional_set_size(const std::string& process);

// The most of several processes, from time to time: the kernel walks all their pages for it.
class MemoryWatch {
 public:
  void open(const std::vector<int>& processes) { processes_ = processes; }
  uint64_t most();  // as of at most a second ago, or a hundred times what looking takes

 private:
  std::vector<int> processes_;
  uint64_t most_ = 0;
  double next_s_ = 0;
};

}  // namespace prun
