// A thread that does nothing but store the time in the flight recorder: a process whose time stands still is stopped or
// frozen, and one whose time goes on while its op does not is busy or waits.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>

#include "exec/recorder.h"

namespace prun {

class Heartbeat {
 public:
  explicit Heartbeat(RecorderHeader& recorder);  // outlives this
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  void run();

  RecorderHeader& recorder_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace prun
