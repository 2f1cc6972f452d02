// A queue device in host memory ("cpu-queue") supports any transport; its calls run at once without capture.
#include "bench/buffers.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "kernels/devices.h"

namespace prun {

const prun_device& bench_device(const std::string& name) {
  static std::vector<std::unique_ptr<Device>> opened;  // a table lives as long as its Device
  opened.push_back(open_device(name));
  PRUN_CHECK(opened.back()->queue() != nullptr, name + " has no memory of its own");
  return *opened.back()->queue();
}

BenchBuffers::BenchBuffers(World& world, const BenchSettings& settings, int index, int64_t bytes) : bytes_(bytes) {
  if (settings.memory.empty()) {
    if (settings.foreign) own_.resize(static_cast<size_t>(bytes));
    data_ = host_ = settings.foreign ? own_.data() : static_cast<char*>(world.allocate(bytes));
    std::memset(host_, 1, static_cast<size_t>(bytes));
    return;
  }
  const prun_device& table = bench_device(settings.memory);
  const prun_mem_kind kind = static_cast<prun_mem_kind>(table.mem_kind);
  const bool enqueues = world.enqueues(kind);
  if (kind != PRUN_MEM_HOST && !enqueues && world.transport_name() == "none")
    throw usage_error(
        fmt::format("--memory {}: one rank alone has no transport; --nproc 2 is the least", settings.memory));
  if (kind != PRUN_MEM_HOST && !enqueues)
    throw usage_error(fmt::format("--memory {}: the transport {} does not work on a device's memory; nccl does",
                                  settings.memory, world.transport_name()));
  device_ = std::make_unique<QueueDevice>(table, index, "");
  stream_ = std::make_unique<DeviceStream>(*device_);
  if (enqueues) data_ = static_cast<char*>(world.allocate_device(bytes, kind));
  if (data_ == nullptr) {
    memory_ = std::make_unique<DeviceMemory>(*device_, bytes, PRUN_PLACE_DEVICE);
    data_ = reinterpret_cast<char*>(memory_->get());
    if (enqueues) world.adopt_device(data_, bytes, kind);
  }
  own_.assign(static_cast<size_t>(bytes), 1);
  host_ = own_.data();
  put();
}

void BenchBuffers::put() const {
  if (!stream_) return;
  stream_->copy(data_, host_, bytes_);
  stream_->wait();
}

void BenchBuffers::fetch() const {
  if (!stream_) return;
  stream_->copy(host_, data_, bytes_);
  stream_->wait();
}

std::function<void()> BenchBuffers::repeatable(std::function<void()> call) const {
  if (!stream_ || !device_->captures() || device_->table().mem_kind == PRUN_MEM_HOST) return call;
  const prun_device& table = device_->table();
  device_->call("beginning a capture",
                [&](prun_result* result) { return table.capture_begin(device_->get(), stream_->get(), result); });
  call();
  prun_graph* captured = nullptr;
  device_->call("ending a capture", [&](prun_result* result) {
    return table.capture_end(device_->get(), stream_->get(), &captured, result);
  });
  auto graph = std::make_shared<DeviceGraph>(*device_, captured);
  return [this, graph] { graph->launch(*stream_); };
}

void BenchBuffers::wait() const {
  if (stream_) stream_->wait();
}

}  // namespace prun
