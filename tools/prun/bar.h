// A bar on stderr, where that is a terminal, for commands that read or write many bytes, or go through many items.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "progress.h"

namespace prun {

class Bar {
 public:
  explicit Bar(std::string what, std::string items = "") : what_(std::move(what)), items_(std::move(items)) {}
  ~Bar();  // removes it
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;
  void advance(int64_t done, int64_t of);  // bytes or items

 private:
  std::string what_, items_;
  Screen screen_ = standard_screen();
  std::chrono::steady_clock::time_point last_;
  bool drawn_ = false;
};

}  // namespace prun
