#include "exec/host_thread.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>

#include "exec/recorder.h"

namespace prun {

void Backoff::wait() {
  constexpr int kSpins = 20, kYields = 40, kMostMicroseconds = 50;
  ++rounds_;
  if (rounds_ <= kSpins) return;
  if (rounds_ <= kYields)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(rounds_ - kYields, kMostMicroseconds)));
}

HostThread::HostThread(const std::string& name, const std::atomic<bool>& cancelled, std::function<void()> on_done,
                       std::function<void(const Op&)> failed)
    : cancelled_(cancelled), done_(std::move(on_done)), failed_(std::move(failed)), thread_([this, name] {
        prctl(PR_SET_NAME, name.c_str());
        run();
      }) {}

HostThread::~HostThread() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostThread::push(HostJob& job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(&job);
  }
  changed_.notify_one();
}

void HostThread::arm(void* data) {
  HostJob& job = *static_cast<HostJob*>(data);
  std::lock_guard lock(job.thread->mutex_);
  ++job.armed;
  job.thread->changed_.notify_one();
}

bool HostThread::wait_armed(HostJob& job, std::unique_lock<std::mutex>& lock) {
  ++job.begun;
  while (job.waits && job.armed < job.begun && !cancelled_.load(std::memory_order_relaxed))
    changed_.wait_for(lock, std::chrono::milliseconds(50));  // a cancellation notifies no one
  return !cancelled_.load(std::memory_order_relaxed);
}

void HostThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !jobs_.empty() || closed_; });
    if (jobs_.empty()) return;
    HostJob& job = *jobs_.front();
    jobs_.pop_front();
    for (uint64_t chunk = 0; chunk < job.chunks; ++chunk) {
      if (!wait_armed(job, lock)) return;
      lock.unlock();
      try {
        if (chunk == 0) job.begin_ns = now_ns();
        job.kernel->run();
        job.end_ns = now_ns();
      } catch (...) {
        failed_(*job.op);
        done_();
        return;
      }
      job.ended.fetch_add(1, std::memory_order_release);
      done_();
      lock.lock();
    }
  }
}

}  // namespace prun
