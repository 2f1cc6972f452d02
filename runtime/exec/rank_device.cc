// The host as a device, and the choice between the two kinds of devices.
#include "exec/rank_device.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "exec/executor.h"
#include "exec/queue_memory.h"
#include "prun/sdk/descriptor.h"

namespace prun {
namespace {

// Returns zeroed pages private to this process.
sdk::Mapping host_memory(int64_t bytes) {
  if (bytes == 0) return {};
  sdk::Mapping pages = sdk::Mapping::pages(static_cast<size_t>(bytes), MAP_PRIVATE | MAP_NORESERVE);
  if (!pages)
    throw Error(Exit::out_of_memory,
                fmt::format("no {} bytes of host memory for what is offloaded: {}", bytes, strerror(errno)));
  // Populates the pages now, otherwise the first snapshot would take several times as long as later ones.
  madvise(pages.base(), pages.bytes(), MADV_HUGEPAGE);
  madvise(pages.base(), pages.bytes(), MADV_POPULATE_WRITE);  // older kernels populate on first use
  return pages;
}

// The arena is the transport's memory if it provides some, so that peers access it without a copy.
class HostDevice final : public RankDevice {
 public:
  HostDevice(const Device& device, const Program& program, World& world)
      : device_(device), program_(program), host_arena_(host_memory(program.host_arena_bytes)) {
    if (program.arena_bytes > 0) arena_ = static_cast<std::byte*>(world.allocate(program.arena_bytes));
  }
  std::byte* arena() const override { return arena_; }
  std::byte* host_arena() const override { return host_arena_.base(); }
  bool takes_puts() const override { return true; }
  std::unique_ptr<JobRun> make_executor(World& world, const ExecutorOptions& options) override {
    return std::make_unique<Executor>(program_, device_, *this, world, options);
  }

 private:
  const Device& device_;
  const Program& program_;
  sdk::Mapping host_arena_;
  std::byte* arena_ = nullptr;
};

}  // namespace

void RankDevice::account(int64_t DeviceUse::*whom) {
  const int64_t before = use_.free;
  use_.free = free_bytes();
  use_.*whom += std::max<int64_t>(0, before - use_.free);
}

std::unique_ptr<RankDevice> open_rank_device(const Device& device, const Program& program, World& world,
                                             const DeviceOptions& options) {
  if (device.queue() != nullptr) return std::make_unique<QueueMemory>(program, *device.queue(), options, world);
  return std::make_unique<HostDevice>(device, program, world);
}

}  // namespace prun
