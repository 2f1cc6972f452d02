#include "device/queue_device.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "base/text.h"

namespace prun {
namespace {

void log_line(int level, const char* text) {
  spdlog::log(level == 0 ? spdlog::level::debug : level == 1 ? spdlog::level::info : spdlog::level::warn, "{}", text);
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
  device.call(doing.c_str(), [&](prun_result* result) {
    return device.table().alloc(device.get(), static_cast<size_t>(std::max<int64_t>(bytes, 1)), place, &ptr_, result);
  });
}
DeviceMemory::~DeviceMemory() {
  if (ptr_ != nullptr) device_->table().free(device_->get(), ptr_, place_);
}

DeviceStream::DeviceStream(QueueDevice& device, int priority) : device_(device) {
  device.call("making a stream", [&](prun_result* result) {
    return device.table().stream_create(device.get(), priority, &stream_, result);
  });
}
DeviceStream::~DeviceStream() {
  if (stream_ != nullptr) device_.table().stream_free(device_.get(), stream_);
}
void DeviceStream::copy(void* to, const void* from, int64_t bytes) {
  device_.call("copying", [&](prun_result* result) {
    return device_.table().copy(device_.get(), stream_, to, from, static_cast<size_t>(bytes), result);
  });
}
void DeviceStream::zero(void* ptr, int64_t bytes) {
  device_.call("zeroing memory", [&](prun_result* result) {
    return device_.table().zero(device_.get(), stream_, ptr, static_cast<size_t>(bytes), result);
  });
}
void DeviceStream::host_call(void (*function)(void*), void* data) {
  device_.call("calling the host", [&](prun_result* result) {
    return device_.table().host_call(device_.get(), stream_, function, data, result);
  });
}
bool DeviceStream::idle() const {
  return device_.reached(
      "at its work", [&](prun_result* result) { return device_.table().stream_test(device_.get(), stream_, result); });
}

void DeviceStream::wait() {
  device_.call("waiting for its work",
               [&](prun_result* result) { return device_.table().stream_wait(device_.get(), stream_, result); });
}

DeviceEvent::DeviceEvent(QueueDevice& device, bool timed) : device_(device) {
  device.call("making an event", [&](prun_result* result) {
    return device.table().event_create(device.get(), timed ? 1 : 0, &event_, result);
  });
}
DeviceEvent::~DeviceEvent() {
  if (event_ != nullptr) device_.table().event_free(device_.get(), event_);
}
void DeviceEvent::record(const DeviceStream& stream, bool external) {
  device_.call("recording an event", [&](prun_result* result) {
    return device_.table().event_record(device_.get(), event_, stream.get(), external ? 1 : 0, result);
  });
}
void DeviceEvent::hold(const DeviceStream& stream) const {
  device_.call("waiting for an event", [&](prun_result* result) {
    return device_.table().event_wait(device_.get(), stream.get(), event_, result);
  });
}
bool DeviceEvent::reached() const {
  return device_.reached(
      "its work", [&](prun_result* result) { return device_.table().event_test(device_.get(), event_, result); });
}
double DeviceEvent::ms_since(const DeviceEvent& earlier) const {
  double ms = 0;
  device_.call("reading a time", [&](prun_result* result) {
    return device_.table().event_elapsed(device_.get(), earlier.event_, event_, &ms, result);
  });
  return ms;
}

DeviceKernel::DeviceKernel(QueueDevice& device, const prun_op& op) : device_(device) {
  device.call(op.kind,
              [&](prun_result* result) { return device.table().kernel_create(device.get(), &op, &kernel_, result); });
}
DeviceKernel::~DeviceKernel() {
  if (kernel_ != nullptr) device_.table().kernel_free(device_.get(), kernel_);
}
void DeviceKernel::run(const DeviceStream& stream) {
  device_.call("starting a kernel", [&](prun_result* result) {
    return device_.table().kernel_run(device_.get(), kernel_, stream.get(), result);
  });
}

DeviceGraph::~DeviceGraph() {
  if (graph_ != nullptr) device_->table().graph_free(device_->get(), graph_);
}
void DeviceGraph::launch(const DeviceStream& stream) {
  device_->call("launching a graph", [&](prun_result* result) {
    return device_->table().graph_launch(device_->get(), graph_, stream.get(), result);
  });
}

DeviceCapture::DeviceCapture(QueueDevice& device, const DeviceStream& origin) : device_(device), origin_(origin) {
  device.call("capturing a step",
              [&](prun_result* result) { return device.table().capture_begin(device.get(), origin.get(), result); });
  open_ = true;
}
DeviceGraph DeviceCapture::finish() {
  prun_graph* graph = nullptr;
  open_ = false;  // a device ends a capture that it refuses
  device_.call("capturing a step", [&](prun_result* result) {
    return device_.table().capture_end(device_.get(), origin_.get(), &graph, result);
  });
  return DeviceGraph(device_, graph);
}
// What the device says of a capture that is not whole is no news.
void DeviceCapture::abandon() {
  if (!std::exchange(open_, false)) return;
  prun_graph* graph = nullptr;
  prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
  if (device_.table().capture_end(device_.get(), origin_.get(), &graph, &result) == PRUN_OK)
    device_.table().graph_free(device_.get(), graph);
}

}  // namespace prun
