// A descriptor that is written without blocking on its reader, because a terminal after Ctrl-S or a stuck pipe must not
// keep the launcher from its ranks. A bounded queue holds pending text; further texts are dropped whole and counted.
//
// O_NONBLOCK belongs to the open file description, which the shell and others share, so a pipe or a terminal is opened
// again through /proc/self/fd.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "launch/control.h"

namespace prun {

class Outlet {
 public:
  static constexpr size_t kMostBytes = 4 << 20;  // capacity of the queue

  explicit Outlet(int fd, size_t most = kMostBytes);  // not owned; regular files are written synchronously
  void write(std::string_view text);
  void flush();  // writes as much as the reader accepts; call regularly
  // Blocks until the queue is empty, or nothing has been read for `patience_s`.
  void finish(double patience_s);
  bool idle() const { return queue_.empty(); }
  uint64_t dropped() const { return dropped_; }  // lines
  // The error of the first failed write ("No space left on device"), or "".
  const std::string& failure() const { return failure_; }

 private:
  bool push();  // false: the reader is full

  int fd_;
  Fd own_;  // the same file, opened again
  bool waits_ = false, socket_ = false;
  size_t most_;
  std::string queue_;
  uint64_t dropped_ = 0;
  std::string failure_;
};

}  // namespace prun
