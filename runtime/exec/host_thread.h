// Runs the host ops of one stream of a queue device in order: waits until the device has copied what an op reads to the
// host, then calls its kernel.
//
// Each stream has its thread, so that a message that waits for its peer delays no other stream. The thread calls
// nothing of the device: the device calls arm().
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "device/device.h"

namespace prun {

class HostThread;

struct HostJob {
  const Op* op = nullptr;
  Kernel* kernel = nullptr;
  HostThread* thread = nullptr;
  bool waits = false;                 // for arm() before each chunk
  uint64_t chunks = 1;                // runs of the kernel, one after the other
  uint64_t begin_ns = 0, end_ns = 0;  // of the last run
  uint64_t armed = 0, begun = 0;      // counted under the thread's mutex
  std::atomic<uint64_t> ended{0};     // chunks so far
};

class HostThread {
 public:
  // Calls `on_done` after each chunk of a job, and `failed` in a catch block for a chunk that throws, which is the last
  // that it runs.
  HostThread(const std::string& name, const std::atomic<bool>& cancelled, std::function<void()> on_done,
             std::function<void(const Op&)> failed);
  ~HostThread();  // ends after the queued jobs, or once cancelled after the one under way
  void push(HostJob& job);
  // For prun_device::host_call, with the HostJob: what the job's next chunk reads is on the host.
  static void arm(void* job);

 private:
  void run();
  bool wait_armed(HostJob& job, std::unique_lock<std::mutex>& lock);

  const std::atomic<bool>& cancelled_;
  std::function<void()> done_;
  std::function<void(const Op&)> failed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HostJob*> jobs_;
  bool closed_ = false;
  std::thread thread_;
};

// Waits a little longer each time: spins, yields, then sleeps for up to 50 µs.
class Backoff {
 public:
  void wait();
  void reset() { rounds_ = 0; }

 private:
  int rounds_ = 0;
};

// Asks the system for short slices of time: from Linux 6.12 on, a thread with a shorter slice than the one that holds
// the core gets it as soon as it wakes, instead of when the other's slice is over. Its share of the core stays
// the same. What the system refuses, or is too old for, changes nothing.
void take_short_slices();

}  // namespace prun
