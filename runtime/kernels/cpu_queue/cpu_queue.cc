// The class from which prun/sdk/device.h makes the device's table: each function is a few calls of streams.h and
// kernel.h.
#include "kernels/cpu_queue/cpu_queue.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "kernels/cpu_queue/kernel.h"
#include "kernels/cpu_queue/streams.h"
#include "prun/sdk/device.h"

namespace prun {
namespace {

using sdk::Failure;

constexpr size_t kAlign = 256;

struct FreeBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

uint64_t memory_bytes(const char* wanted) {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  for (uint64_t kilobytes = 0; meminfo >> key >> kilobytes; std::getline(meminfo, unit))
    if (key == wanted) return kilobytes * 1024;
  return 0;
}

// Returns the result of body(). Rethrows errors of the CPU device as Failure.
template <class Body>
auto translated(const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Failure(error.code() == Exit::out_of_memory ? PRUN_ENOMEM : PRUN_ENOTSUP, error.what());
  }
}

class CpuQueue {
 public:
  using Stream = cpu_queue::Stream;
  using Graph = cpu_queue::Graph;
  struct Event {
    cpu_queue::Event state = std::make_shared<cpu_queue::EventState>();
  };
  struct Kernel {
    explicit Kernel(const prun_op& op) : one(op), kernel(one.make()) {}
    cpu_queue::OneOp one;
    std::unique_ptr<prun::Kernel> kernel;
  };

  // Accepts any index, because ranks share the host's cores.
  explicit CpuQueue(const prun_device_params& params) {
    if (*params.options != '\0')
      throw Failure(PRUN_EINVAL, fmt::format("there is no option '{}': it has none", params.options));
  }
  static void probe(prun_device_probe& probe) {
    probe.devices = 1;
    sdk::copy_text("threads", probe.runtime, sizeof probe.runtime);
  }
  static void describe(int index, prun_device_info& info) {
    if (index != 0) throw Failure(PRUN_ENOTSUP, fmt::format("there is no CPU {}: all cores are one", index));
    sdk::copy_text("CPU", info.name, sizeof info.name);
    sdk::copy_text("cpu", info.id, sizeof info.id);
    info.total_bytes = memory_bytes("MemTotal:");
    info.free_bytes = memory_bytes("MemAvailable:");
  }
  static std::string why_refused(const prun_op& op) {
    if (translated([&] { return cpu_queue::OneOp(op).supported(); })) return "";
    return fmt::format("the CPU has no {} of these types", op.kind);
  }
  static size_t workspace(const prun_op& op) {
    return translated([&] { return static_cast<size_t>(cpu_queue::OneOp(op).workspace_bytes()); });
  }

  void* alloc(size_t bytes, int) {
    void* made = bytes <= PTRDIFF_MAX ? std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign) : nullptr;
    if (made == nullptr) throw Failure(PRUN_ENOMEM, fmt::format("no {} bytes of memory", bytes));
    return memory_.keep(std::unique_ptr<std::byte, FreeBytes>(static_cast<std::byte*>(made)));
  }
  void free(void* ptr, int) { memory_.free(static_cast<std::byte*>(ptr)); }
  void memory_info(uint64_t& free_bytes, uint64_t& total_bytes) {
    free_bytes = memory_bytes("MemAvailable:");
    total_bytes = memory_bytes("MemTotal:");
  }
  void pin(void*, size_t) {}
  void unpin(void*) {}

  std::unique_ptr<Stream> stream_create(int) { return std::make_unique<Stream>(); }
  prun_queue stream_queue(Stream&) { return {PRUN_MEM_HOST, nullptr}; }
  bool stream_test(Stream& stream) { return stream.idle(); }
  void stream_wait(Stream& stream) { stream.wait(); }

  std::unique_ptr<Event> event_create(bool) { return std::make_unique<Event>(); }
  void event_record(Event& event, Stream& stream, bool) { issuer_.issue({&stream, {}, event.state, {}}); }
  void event_wait(Stream& stream, Event& event) { issuer_.issue({&stream, {}, {}, event.state}); }
  bool event_test(Event& event) { return event.state->reached(); }
  double event_elapsed(Event& from, Event& to) { return to.state->ms() - from.state->ms(); }

  void copy(Stream& stream, void* to, const void* from, size_t bytes) {
    enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  }
  void zero(Stream& stream, void* ptr, size_t bytes) {
    enqueue(stream, [=] { std::memset(ptr, 0, bytes); });
  }
  void host_call(Stream& stream, void (*function)(void*), void* data) {
    enqueue(stream, [=] { function(data); });
  }

  std::unique_ptr<Kernel> kernel_create(const prun_op& op) {
    if (const std::string why = why_refused(op); !why.empty()) throw Failure(PRUN_ENOTSUP, why);
    return translated([&] { return std::make_unique<Kernel>(op); });
  }
  void kernel_run(Kernel& kernel, Stream& stream) {
    enqueue(stream, [&kernel] { kernel.kernel->run(); });
  }

  void capture_begin(Stream& stream) { issuer_.begin_capture(&stream); }
  std::unique_ptr<Graph> capture_end(Stream& stream) { return issuer_.end_capture(&stream); }
  void graph_launch(Graph& graph, Stream& stream) { issuer_.launch(graph, &stream); }

 private:
  void enqueue(Stream& stream, std::function<void()> work) { issuer_.issue({&stream, std::move(work), {}, {}}); }

  sdk::Owned<std::byte, FreeBytes> memory_;
  cpu_queue::Issuer issuer_;
};

}  // namespace

const prun_device& cpu_queue_table() {
  static const prun_device& table = *sdk::device_table<CpuQueue>(
      PRUN_DEVICE_ABI, {.name = "cpu-queue", .version = "1.0.0", .summary = "the CPU, driven as a GPU is: for tests"});
  return table;
}

}  // namespace prun
