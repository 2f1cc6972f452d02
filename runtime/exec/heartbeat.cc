#include <sys/prctl.h>

#include <chrono>

#include "exec/recorder.h"

namespace prun {
namespace {

constexpr auto kBeat = std::chrono::milliseconds(500);

}  // namespace

Heartbeat::Heartbeat(RecorderHeader& recorder) : recorder_(recorder), thread_([this] { run(); }) {}

Heartbeat::~Heartbeat() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Heartbeat::run() {
  prctl(PR_SET_NAME, "heartbeat");
  std::unique_lock lock(mutex_);
  do recorder_.alive_ns.store(now_ns(), std::memory_order_relaxed);
  while (!changed_.wait_for(lock, kBeat, [this] { return closed_; }));
}

}  // namespace prun
