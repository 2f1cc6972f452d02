// Tells whether the kernel has killed a process of this job for memory since the watch began.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace prun {

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
