// Preflight: can this machine hold the ranks? Asked before any is started.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace prun {

// Bytes that processes may still take: the least of the machine and this process's cgroups (version 2). `root` is "/"
// except in tests.
int64_t available_memory(const std::string& root = "/");
int64_t total_memory();  // bytes of the machine

// Throws Error(out_of_memory) or Error(usage) when `ranks` processes cannot fit, whatever they run.
void check_machine(int ranks, size_t recorder_bytes, bool capture_output);

// Tells whether the kernel has killed a process of this job for memory since the watch began.
class OomWatch {
 public:
  // `root` is "/" except in tests.
  explicit OomWatch(const std::string& root = "/");
  // The counter has grown since the last call, or since the start.
  bool killed_since();

 private:
  int64_t count() const;
  std::vector<std::string> files_;  // that have a line "oom_kill N"
  int64_t last_ = 0;
};

}  // namespace prun
