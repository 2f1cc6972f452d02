// The two buffers of a measured transport. They are in device memory, or in host memory, which is the transport's own
// or foreign.
//
// Calls on device memory are measured as in a program: captured as a graph and launched on a stream, with one wait for
// all calls.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/settings.h"
#include "comm/comm.h"
#include "device/queue_device.h"

namespace prun {

// Returns the function table of --memory's device.
const prun_device& bench_device(const std::string& name);

class BenchBuffers {
 public:
  // Construct before `world` connects. `index`: device of the host. Throws usage_error if the transport does not
  // support the device's memory.
  BenchBuffers(World& world, const BenchSettings& settings, int index, int64_t bytes);

  char* data() const { return data_; }
  char* host() const { return host_; }  // data(), or its copy on the host, which `put` and `fetch` transfer
  void put() const;
  void fetch() const;
  prun_queue queue() const { return stream_ ? stream_->queue() : prun_queue{PRUN_MEM_HOST, nullptr}; }

  // Returns the call in its repeatable form, a graph on devices that capture; complete after `wait`.
  std::function<void()> repeatable(std::function<void()> call) const;
  void wait() const;

 private:
  std::vector<char> own_;  // foreign host memory, or the host's copy
  std::unique_ptr<QueueDevice> device_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<DeviceStream> stream_;  // null on the host
  char *data_ = nullptr, *host_ = nullptr;
  int64_t bytes_;
};

}  // namespace prun
