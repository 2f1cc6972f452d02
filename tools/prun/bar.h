// A bar on stderr, where that is a terminal, for commands that read or write many bytes.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "progress.h"

namespace prun {

class Bar {
 public:
  explicit Bar(std::string what) : what_(std::move(what)) {}
  ~Bar();  // removes it
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;
  void advance(int64_t bytes, int64_t of);

 private:
  std::string what_;
  Screen screen_ = standard_screen();
  std::chrono::steady_clock::time_point last_;
  bool drawn_ = false;
};

}  // namespace prun
