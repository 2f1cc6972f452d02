// UCX's warnings as lines of this rank's log; and its hands off the signals of a crash.
#pragma once
#include <prun/transport.h>

#include <string>
#include <utility>

namespace prun::ucx {

void take_over_log(const prun_host* host);  // once a process

// While it lives, what UCX warns of on this thread is kept here and not logged.
class Overheard {
 public:
  Overheard();
  ~Overheard();
  std::string take() { return std::exchange(text_, {}); }
  void add(const char* line);

 private:
  std::string text_;
};

// Lines go to the core's log only while one of these lives: at the end of the process there may be no log any more.
// What UCX says then of what was left open is said to nobody.
class LogOpen {
 public:
  LogOpen();
  ~LogOpen();
  LogOpen(const LogOpen&) = delete;
  void leave();  // its context is left to the end of the process

 private:
  bool left_ = false;
};

}  // namespace prun::ucx
