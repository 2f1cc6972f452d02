// Redirects UCX's log to this rank's log and disables UCX's crash handlers.
#pragma once
#include <prun/transport.h>

#include <string>
#include <utility>

namespace prun::ucx {

void take_over_log(const prun_host* host);  // call once per process

// While it exists, UCX's warnings on this thread are collected here and not logged.
class Overheard {
 public:
  Overheard();
  ~Overheard();
  std::string take() { return std::exchange(text_, {}); }
  void add(const char* line);

 private:
  std::string text_;
};

// Lines reach the core's log only while a LogOpen exists, because the log may be gone at the end of the process. Later
// messages about retained contexts are discarded.
class LogOpen {
 public:
  LogOpen();
  ~LogOpen();
  LogOpen(const LogOpen&) = delete;
  void leave();  // called if the context is retained until the process ends

 private:
  bool left_ = false;
};

}  // namespace prun::ucx
