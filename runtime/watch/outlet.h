// A descriptor that is written without blocking on its reader, because a terminal after Ctrl-S or a stuck pipe must not
// keep the launcher from its ranks. A queue holds pending text. If it is full and the reader has taken nothing for
// kPatience, further texts are dropped whole and counted; a slow reader receives all, because its writers wait while
// behind() is true.
//
// O_NONBLOCK belongs to the open file description, which the shell and others share, so a pipe or a terminal is opened
// again through /proc/self/fd.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "launch/control.h"

namespace prun {

class Outlet {
 public:
  static constexpr size_t kMostBytes = 4 << 20;     // of the queue, unless the reader is slow
  static constexpr size_t kMostBehind = 128 << 20;  // of the queue of a slow reader; beyond it write() waits
  static constexpr std::chrono::seconds kPatience{10}, kLongestWait{5};

  explicit Outlet(int fd, size_t most = kMostBytes);  // not owned; regular files are written synchronously
  void write(std::string_view text);
  void flush();  // writes as much as the reader accepts; call regularly
  // Blocks until the queue is empty, or nothing has been read for `patience_s`.
  void finish(double patience_s);
  bool idle() const { return waiting() == 0; }
  bool behind() const { return waiting() >= most_ && reader_takes(); }  // the queue is full, and the reader is slow
  uint64_t dropped() const { return dropped_; }                         // lines
  // The error of the first failed write ("No space left on device"), or "".
  const std::string& failure() const { return failure_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool push();  // false: the reader is full
  void clear();
  int descriptor() const { return own_ ? own_.get() : fd_; }
  size_t waiting() const { return queue_.size() - put_; }
  bool reader_takes() const { return Clock::now() - taken_ < kPatience; }

  int fd_;
  Fd own_;  // the same file, opened again
  bool waits_ = false, socket_ = false;
  size_t most_;
  std::string queue_;
  size_t put_ = 0;                          // bytes at the front of the queue that are written
  Clock::time_point taken_ = Clock::now();  // when the reader last took bytes
  uint64_t dropped_ = 0;
  std::string failure_;
};

}  // namespace prun
