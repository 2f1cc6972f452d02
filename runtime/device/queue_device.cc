#include "device/queue_device.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "base/text.h"

namespace prun {
namespace {

void log_line(int level, const char* text) {
  spdlog::log(level == 0   ? spdlog::level::debug
              : level == 1 ? spdlog::level::info
                           : spdlog::level::warn,
              "device: {}", text);
}

}  // namespace

QueueDevice::QueueDevice(const prun_device& table, int index, const std::string& options) : table_(table) {
  prun_device_params params{.size = sizeof params, .index = index, .options = options.c_str(), .log = log_line};
  prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
  const prun_status status = table_.open(&params, &dev_, &result);
  if (status == PRUN_EINVAL) throw usage_error(fmt::format("device {}: {}", table_.name, result.message));
  check(status, result, "opening it");
}

QueueDevice::~QueueDevice() {
  if (dev_ != nullptr) table_.close(dev_);
}

void QueueDevice::check(prun_status status, const prun_result& result, const char* doing) const {
  if (status == PRUN_OK) return;
  const Exit code = status == PRUN_ENOMEM    ? Exit::out_of_memory
                    : status == PRUN_ENOTSUP ? Exit::usage
                                             : Exit::rank_crash;
  const std::string why = *result.message != '\0' ? result.message : fmt::format("status {}", static_cast<int>(status));
  throw Error(code, fmt::format("device {}: {}: {}", table_.name, doing, why));
}

DeviceMemory::DeviceMemory(QueueDevice& device, int64_t bytes, prun_place place) : device_(&device), place_(place) {
  const std::string doing =
      fmt::format("taking {} of {}", human_bytes(bytes), place == PRUN_PLACE_DEVICE ? "its memory" : "pinned memory");
  device.call<&prun_device::alloc>(doing.c_str(), std::max<int64_t>(bytes, 1), place, &ptr_);
}
DeviceMemory::~DeviceMemory() {
  if (ptr_ != nullptr) device_->table().free(device_->get(), ptr_, place_);
}

DeviceStream::DeviceStream(QueueDevice& device, int priority) : DeviceHandle(device) {
  device.call<&prun_device::stream_create>("making a stream", priority, &made_);
}
void DeviceStream::copy(void* to, const void* from, int64_t bytes) {
  device_->call<&prun_device::copy>("copying", made_, to, from, bytes);
}
void DeviceStream::zero(void* ptr, int64_t bytes) {
  device_->call<&prun_device::zero>("zeroing memory", made_, ptr, bytes);
}
void DeviceStream::host_call(void (*function)(void*), void* data) {
  device_->call<&prun_device::host_call>("calling the host", made_, function, data);
}
bool DeviceStream::idle() const { return device_->reached<&prun_device::stream_test>("at its work", made_); }
void DeviceStream::wait() { device_->call<&prun_device::stream_wait>("waiting for its work", made_); }

DeviceEvent::DeviceEvent(QueueDevice& device, bool timed) : DeviceHandle(device) {
  device.call<&prun_device::event_create>("making an event", timed ? 1 : 0, &made_);
}
void DeviceEvent::record(const DeviceStream& stream, bool external) {
  device_->call<&prun_device::event_record>("recording an event", made_, stream.get(), external ? 1 : 0);
}
void DeviceEvent::hold(const DeviceStream& stream) const {
  device_->call<&prun_device::event_wait>("waiting for an event", stream.get(), made_);
}
bool DeviceEvent::reached() const { return device_->reached<&prun_device::event_test>("its work", made_); }
double DeviceEvent::ms_since(const DeviceEvent& earlier) const {
  double ms = 0;
  device_->call<&prun_device::event_elapsed>("reading a time", earlier.made_, made_, &ms);
  return ms;
}

DeviceKernel::DeviceKernel(QueueDevice& device, const prun_op& op) : DeviceHandle(device) {
  device.call<&prun_device::kernel_create>(op.kind, &op, &made_);
}
void DeviceKernel::run(const DeviceStream& stream) {
  device_->call<&prun_device::kernel_run>("starting a kernel", made_, stream.get());
}

void DeviceGraph::launch(const DeviceStream& stream) {
  device_->call<&prun_device::graph_launch>("launching a graph", made_, stream.get());
}

DeviceCapture::DeviceCapture(QueueDevice& device, const DeviceStream& origin) : device_(device), origin_(origin) {
  device.call<&prun_device::capture_begin>("capturing a step", origin.get());
  open_ = true;
}
DeviceGraph DeviceCapture::finish() {
  prun_graph* graph = nullptr;
  open_ = false;  // a device also ends a capture that it refuses
  device_.call<&prun_device::capture_end>("capturing a step", origin_.get(), &graph);
  return DeviceGraph(device_, graph);
}
// Ignores the device's status, because devices refuse incomplete captures.
void DeviceCapture::abandon() {
  if (!std::exchange(open_, false)) return;
  prun_graph* graph = nullptr;
  prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
  if (device_.table().capture_end(device_.get(), origin_.get(), &graph, &result) == PRUN_OK)
    device_.table().graph_free(device_.get(), graph);
}

}  // namespace prun
