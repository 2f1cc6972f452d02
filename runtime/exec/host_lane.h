// Runs the host ops of one stream of a queue device, in their order: waits until the device has brought what an op
// reads, then calls its kernel.
//
// A thread a stream, so that a message that waits for its peer holds up nobody else, as on a device whose streams are
// threads. It calls nothing of the device: the device calls arm().
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

class HostLane;

struct HostJob {
  const Op* op = nullptr;
  Kernel* kernel = nullptr;
  HostLane* lane = nullptr;
  bool waits = false;                 // for the device, each time
  uint64_t chunks = 1;                // runs of the kernel, one after the other
  uint64_t begin_ns = 0, end_ns = 0;  // of the last run
  uint64_t armed = 0, begun = 0;      // under the lane's mutex: how often
  std::atomic<uint64_t> ended{0};     // chunks so far
};

class HostLane {
 public:
  // `told` is called after each chunk of a job, on the lane's thread; `failed` with the error of one: the lane then
  // does no more.
  HostLane(const std::string& name, const std::atomic<bool>& cancelled, std::function<void()> told,
           std::function<void(const Op&)> failed);
  ~HostLane();  // after the job under way; those behind it are dropped once cancelled
  void push(HostJob& job);
  // For prun_device::host_call, with the HostJob: what the next chunk of the job reads is there.
  static void arm(void* job);

 private:
  void run();
  bool wait_armed(HostJob& job, std::unique_lock<std::mutex>& lock);

  const std::atomic<bool>& cancelled_;
  std::function<void()> told_;
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

}  // namespace prun
