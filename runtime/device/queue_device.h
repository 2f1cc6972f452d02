// An open device of prun/device.h: its functions with C++ lifetimes and exceptions.
//
// Errors: a device's message becomes an Error that begins with the device's name: Exit::out_of_memory for PRUN_ENOMEM,
// Exit::usage for PRUN_ENOTSUP, otherwise Exit::rank_crash. Threads: one at a time, as prun/device.h requires.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/device.h"

namespace prun {

class QueueDevice {
 public:
  // `index`: among the host's devices. Throws usage_error for invalid options.
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
  // Calls a function of the table, whose first argument is the device and whose last is the result.
  template <auto function, class... Arguments>
  void call(const char* doing, Arguments... arguments) const {
    call(doing, [&](prun_result* result) { return (table_.*function)(dev_, arguments..., result); });
  }
  // Calls likewise, for work that may be in flight: returns false for PRUN_AGAIN.
  template <auto function, class... Arguments>
  bool reached(const char* doing, Arguments... arguments) const {
    prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
    const prun_status status = (table_.*function)(dev_, arguments..., &result);
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

// Owns an object of the device, which `release` frees.
template <class T, auto release>
class DeviceHandle {
 public:
  DeviceHandle() = default;
  DeviceHandle(DeviceHandle&& other) noexcept { *this = std::move(other); }
  DeviceHandle& operator=(DeviceHandle&& other) noexcept {
    std::swap(device_, other.device_), std::swap(made_, other.made_);
    return *this;
  }
  ~DeviceHandle() {
    if (made_ != nullptr) (device_->table().*release)(device_->get(), made_);
  }
  T* get() const { return made_; }

 protected:
  explicit DeviceHandle(QueueDevice& device, T* made = nullptr) : device_(&device), made_(made) {}
  QueueDevice* device_ = nullptr;
  T* made_ = nullptr;
};

class DeviceStream : public DeviceHandle<prun_stream, &prun_device::stream_free> {
 public:
  explicit DeviceStream(QueueDevice& device, int priority = 0);
  prun_queue queue() const { return device_->table().stream_queue(device_->get(), made_); }
  void copy(void* to, const void* from, int64_t bytes);
  void zero(void* ptr, int64_t bytes);
  void host_call(void (*function)(void*), void* data);
  bool idle() const;  // no work left
  void wait();        // blocks until it is idle
};

class DeviceEvent : public DeviceHandle<prun_event, &prun_device::event_free> {
 public:
  explicit DeviceEvent(QueueDevice& device, bool timed = false);
  void record(const DeviceStream& stream, bool external = false);
  void hold(const DeviceStream& stream) const;  // later work on that stream waits for the event
  bool reached() const;
  double ms_since(const DeviceEvent& earlier) const;
};

class DeviceKernel : public DeviceHandle<prun_kernel, &prun_device::kernel_free> {
 public:
  DeviceKernel(QueueDevice& device, const prun_op& op);
  void run(const DeviceStream& stream);
};

class DeviceGraph : public DeviceHandle<prun_graph, &prun_device::graph_free> {
 public:
  DeviceGraph() = default;
  DeviceGraph(QueueDevice& device, prun_graph* graph) : DeviceHandle(device, graph) {}
  void launch(const DeviceStream& stream);
};

// A capture in progress. Abandoned, after an error, it leaves no graph and its streams in their previous state.
class DeviceCapture {
 public:
  DeviceCapture(QueueDevice& device, const DeviceStream& origin);
  ~DeviceCapture() { abandon(); }
  DeviceCapture(const DeviceCapture&) = delete;
  DeviceGraph finish();  // the origin must have waited for all other streams of the capture
  void abandon();        // does nothing once the capture has ended

 private:
  QueueDevice& device_;
  const DeviceStream& origin_;
  bool open_ = false;
};

}  // namespace prun
