// Preflight: checks, before any rank starts, whether this machine can hold the ranks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace prun {

// Returns the bytes that processes may still allocate: the minimum over the machine and this process's cgroups (version
// 2). `root` is "/" except in tests.
int64_t available_memory(const std::string& root = "/");
int64_t total_memory();  // bytes of the machine

// Throws Error(out_of_memory) or Error(usage) if `ranks` processes cannot fit, whatever they run.
void check_machine(int ranks, size_t recorder_bytes, bool capture_output);

// Detects whether the kernel has killed a process of this job for memory since construction.
class OomWatch {
 public:
  // `root` is "/" except in tests.
  explicit OomWatch(const std::string& root = "/");
  // Returns whether the counter has grown since the last call, or since construction.
  bool killed_since();

 private:
  int64_t count() const;
  std::vector<std::string> files_;  // files with a line "oom_kill N"
  int64_t last_ = 0;
};

}  // namespace prun
