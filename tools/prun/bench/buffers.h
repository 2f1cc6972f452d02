// The two buffers of a measured transport: in host memory, the transport's own or foreign, or in device memory.
//
// Calls on device memory are measured as a program runs them: captured as a graph, launched on a stream, with one wait
// for all.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/settings.h"
#include "comm/comm.h"
#include "device/queue_device.h"

namespace prun {

// The function table of --memory's device.
const prun_device& bench_device(const std::string& name);

class BenchBuffers {
 public:
  // Before `world` connects. `index`: which of the host's devices. Throws usage_error where the transport does not work
  // on the device's memory.
  BenchBuffers(World& world, const BenchSettings& settings, int index, int64_t bytes);

  char* data() const { return data_; }
  char* host() const { return host_; }  // the same, or what `put` and `fetch` copy
  void put() const;
  void fetch() const;
  prun_queue queue() const { return stream_ ? stream_->queue() : prun_queue{PRUN_MEM_HOST, nullptr}; }

  // The call in the form that is repeated; complete once `wait` has returned.
  std::function<void()> repeatable(std::function<void()> call) const;
  void wait() const;

 private:
  std::vector<char> own_;  // foreign memory of the host, or the host's copy
  std::unique_ptr<QueueDevice> device_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<DeviceStream> stream_;  // null on the host
  char *data_ = nullptr, *host_ = nullptr;
  int64_t bytes_;
};

}  // namespace prun
