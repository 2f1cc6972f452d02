// An open device of prun/device.h: its calls with C++ lifetimes and exceptions.
//
// Errors: what the device says becomes Error, out of memory as Exit::out_of_memory, all else as Exit::rank_crash, with
// the device's name in front. Threads: as prun/device.h says, one at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/device.h"

namespace prun {

class QueueDevice {
 public:
  // `index`: which of the host's. Throws usage_error for options that it does not know.
  QueueDevice(const prun_device& table, int index, const std::string& options);
  ~QueueDevice();
  QueueDevice(const QueueDevice&) = delete;

  const prun_device& table() const { return table_; }
  prun_dev* get() const { return dev_; }
  bool captures() const { return table_.capture_begin != nullptr; }

  // Throws unless PRUN_OK; `doing` opens the sentence.
  void check(prun_status status, const prun_result& result, const char* doing) const;
  template <class F>
  void call(const char* doing, const F& f) const {
    prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
    check(f(&result), result, doing);
  }
  // The same for what may not have come yet: false for PRUN_AGAIN.
  template <class F>
  bool reached(const char* doing, const F& f) const {
    prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
    const prun_status status = f(&result);
    if (status != PRUN_AGAIN) check(status, result, doing);
    return status == PRUN_OK;
  }

 private:
  const prun_device& table_;
  prun_dev* dev_ = nullptr;
};

class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(QueueDevice& device, int64_t bytes, prun_place place);
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_), std::swap(ptr_, other.ptr_), std::swap(place_, other.place_);
    return *this;
  }
  ~DeviceMemory();
  std::byte* get() const { return static_cast<std::byte*>(ptr_); }

 private:
  QueueDevice* device_ = nullptr;
  void* ptr_ = nullptr;
  prun_place place_ = PRUN_PLACE_DEVICE;
};

class DeviceStream {
 public:
  explicit DeviceStream(QueueDevice& device, int priority = 0);
  DeviceStream(DeviceStream&& other) noexcept
      : device_(other.device_), stream_(std::exchange(other.stream_, nullptr)) {}
  ~DeviceStream();
  prun_stream* get() const { return stream_; }
  prun_queue queue() const { return device_.table().stream_queue(device_.get(), stream_); }
  void copy(void* to, const void* from, int64_t bytes);
  void zero(void* ptr, int64_t bytes);
  void host_call(void (*function)(void*), void* data);
  bool idle() const;  // has no work left
  void wait();        // blocks

 private:
  QueueDevice& device_;
  prun_stream* stream_ = nullptr;
};

class DeviceEvent {
 public:
  explicit DeviceEvent(QueueDevice& device, bool timed = false);
  DeviceEvent(DeviceEvent&& other) noexcept : device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}
  ~DeviceEvent();
  void record(const DeviceStream& stream, bool external = false);
  void hold(const DeviceStream& stream) const;  // what comes after on that stream waits for it
  bool reached() const;
  double ms_since(const DeviceEvent& earlier) const;

 private:
  QueueDevice& device_;
  prun_event* event_ = nullptr;
};

class DeviceKernel {
 public:
  DeviceKernel(QueueDevice& device, const prun_op& op);
  DeviceKernel(DeviceKernel&& other) noexcept
      : device_(other.device_), kernel_(std::exchange(other.kernel_, nullptr)) {}
  ~DeviceKernel();
  void run(const DeviceStream& stream);

 private:
  QueueDevice& device_;
  prun_kernel* kernel_ = nullptr;
};

class DeviceGraph {
 public:
  DeviceGraph() = default;
  DeviceGraph(QueueDevice& device, prun_graph* graph) : device_(&device), graph_(graph) {}
  DeviceGraph(DeviceGraph&& other) noexcept { *this = std::move(other); }
  DeviceGraph& operator=(DeviceGraph&& other) noexcept {
    std::swap(device_, other.device_), std::swap(graph_, other.graph_);
    return *this;
  }
  ~DeviceGraph();
  void launch(const DeviceStream& stream);

 private:
  QueueDevice* device_ = nullptr;
  prun_graph* graph_ = nullptr;
};

// A capture under way. One that ends early, by an error, has no graph; its streams are as they were before it.
class DeviceCapture {
 public:
  DeviceCapture(QueueDevice& device, const DeviceStream& origin);
  ~DeviceCapture() { abandon(); }
  DeviceCapture(const DeviceCapture&) = delete;
  DeviceGraph finish();  // the origin has waited for all streams that take part
  void abandon();        // once it has ended: nothing

 private:
  QueueDevice& device_;
  const DeviceStream& origin_;
  bool open_ = false;
};

}  // namespace prun
