// A descriptor that is written without ever waiting for its reader: a terminal after Ctrl-S, or a pipe whose other end
// is stuck, must not keep the launcher from its ranks. What finds no room waits in a bounded queue; beyond that whole
// texts are dropped, and counted.
//
// Surprising fact: O_NONBLOCK belongs to the open file, which the shell and others share. So a pipe or a terminal is
// opened once more, through /proc/self/fd.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "launch/control.h"

namespace prun {

class Outlet {
 public:
  static constexpr size_t kMostBytes = 4 << 20;  // in the queue

  explicit Outlet(int fd, size_t most = kMostBytes);  // not owned; regular files are written at once
  void write(std::string_view text);
  void flush();  // what there is room for; call it now and then
  // Waits until all is written, or nothing has been read for so long.
  void finish(double patience_s);
  bool idle() const { return queue_.empty(); }
  uint64_t dropped() const { return dropped_; }  // lines
  // What the first write that failed said ("No space left on device"), else "".
  const std::string& failure() const { return failure_; }

 private:
  bool push();  // false: there is no room

  int fd_;
  Fd own_;  // the same file, opened once more
  bool waits_ = false, socket_ = false;
  size_t most_;
  std::string queue_;
  uint64_t dropped_ = 0;
  std::string failure_;
};

}  // namespace prun
