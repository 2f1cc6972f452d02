// Runs the host ops of one stream of a queue device in order: waits until the device has copied an op's inputs to the
// host, then runs its kernel.
//
// Each stream has its own thread, so that a message that waits for its peer delays no other stream. The thread never
// calls the device: the device calls arm().
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
  bool waits = false;                 // waits for arm() before each chunk
  uint64_t chunks = 1;                // sequential runs of the kernel
  uint64_t begin_ns = 0, end_ns = 0;  // times of the last run
  uint64_t armed = 0, begun = 0;      // counted under the thread's mutex
  std::atomic<uint64_t> ended{0};     // number of chunks that have ended
};

class HostThread {
 public:
  // Calls `on_done` after each chunk of a job. If a chunk throws, calls `failed` in the catch block and runs nothing
  // more.
  HostThread(const std::string& name, const std::atomic<bool>& cancelled, std::function<void()> on_done,
             std::function<void(const Op&)> failed);
  ~HostThread();  // ends after the queued jobs; once cancelled, after the current one
  void push(HostJob& job);
  // Callback of prun_device::host_call; `job` is a HostJob: the inputs of its next chunk are on the host.
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

// Waits longer each time: spins, yields, then sleeps for up to 50 µs.
class Backoff {
 public:
  void wait();
  void reset() { rounds_ = 0; }

 private:
  int rounds_ = 0;
};

// Requests short time slices: from Linux 6.12 a woken thread preempts the running one if its slice is shorter, instead
// of waiting for the end of that slice. Its share of the core does not change. Does nothing on older systems or if
// refused.
void take_short_slices();

}  // namespace prun
