// The table of functions: each is a few calls of streams.h and kernel.h, with exceptions turned into statuses. prun_dev
// owns all that is made, so close frees what a caller forgets to free.
#include "device/cpu_queue/cpu_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <new>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "device/cpu_queue/kernel.h"
#include "device/cpu_queue/streams.h"

using prun::cpu_queue::Event;
using prun::cpu_queue::EventState;
using prun::cpu_queue::Graph;
using prun::cpu_queue::Issuer;
using prun::cpu_queue::OneOp;
using prun::cpu_queue::Stream;

struct prun_stream {
  Stream stream;
};
struct prun_event {
  Event state = std::make_shared<EventState>();
};
struct prun_kernel {
  explicit prun_kernel(const prun_op& op) : one(op), kernel(one.make()) {}
  OneOp one;
  std::unique_ptr<prun::Kernel> kernel;
};
struct prun_graph {
  std::unique_ptr<Graph> graph;
};

namespace prun {
namespace {

template <class T, class Free = std::default_delete<T>>
class Owned {
 public:
  T* keep(T* made) { return all_.emplace(made, made), made; }
  void free(T* address) { all_.erase(address); }

 private:
  std::unordered_map<T*, std::unique_ptr<T, Free>> all_;
};
struct FreeBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

}  // namespace
}  // namespace prun

// Members are destroyed from the last to the first: streams, which finish their work, before what the work needs.
struct prun_dev {
  prun::Owned<std::byte, prun::FreeBytes> memory;
  prun::Owned<prun_kernel> kernels;
  prun::Owned<prun_graph> graphs;
  prun::Owned<prun_event> events;
  prun::Owned<prun_stream> streams;
  Issuer issuer;
};

namespace prun {
namespace {

constexpr size_t kAlign = 256;

// Copies what fits; `room` includes the terminating zero.
void copy_text(std::string_view text, char* to, size_t room) {
  if (room == 0) return;
  to[text.copy(to, room - 1)] = '\0';
}

// Into a result that may be shorter than ours.
prun_status failed(prun_status status, prun_result* result, std::string_view why) {
  if (result->size > offsetof(prun_result, message))
    copy_text(why, result->message, std::min(result->size - offsetof(prun_result, message), sizeof result->message));
  return status;
}

template <class F>
prun_status guarded(prun_result* result, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    return failed(error.code() == Exit::out_of_memory ? PRUN_ENOMEM : PRUN_ENOTSUP, result, error.what());
  } catch (const std::bad_alloc&) {
    return failed(PRUN_ENOMEM, result, "out of memory");
  } catch (const std::logic_error& error) {
    return failed(PRUN_EINVAL, result, error.what());
  } catch (const std::exception& error) {
    return failed(PRUN_ESYSTEM, result, error.what());
  }
}

// For functions that succeed unless they throw.
template <class F>
prun_status done(prun_result* result, const F& f) {
  return guarded(result, [&] { return f(), PRUN_OK; });
}

prun_status enqueue(prun_dev* dev, prun_stream* stream, prun_result* result, std::function<void()> work) {
  return done(result, [&] { dev->issuer.issue({&stream->stream, std::move(work), {}, {}}); });
}

uint64_t memory_bytes(const char* wanted) {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  for (uint64_t kilobytes = 0; meminfo >> key >> kilobytes; std::getline(meminfo, unit))
    if (key == wanted) return kilobytes * 1024;
  return 0;
}

prun_status probe(prun_device_probe* probe) {
  prun_device_probe ours{.size = std::min(probe->size, sizeof ours), .devices = 1};
  copy_text("threads", ours.runtime, sizeof ours.runtime);
  std::memcpy(probe, &ours, ours.size);
  return PRUN_OK;
}

prun_status describe(int index, prun_device_info* info, prun_result* result) {
  if (index != 0) return failed(PRUN_ENOTSUP, result, fmt::format("there is no CPU {}: all cores are one", index));
  prun_device_info ours{.size = std::min(info->size, sizeof ours)};
  copy_text("CPU", ours.name, sizeof ours.name);
  copy_text("cpu", ours.id, sizeof ours.id);
  ours.total_bytes = memory_bytes("MemTotal:");
  ours.free_bytes = memory_bytes("MemAvailable:");
  std::memcpy(info, &ours, ours.size);
  return PRUN_OK;
}

prun_status supports(const prun_op* op, prun_result* result) {
  return guarded(result, [&] {
    if (OneOp(*op).supported()) return PRUN_OK;
    return failed(PRUN_ENOTSUP, result, fmt::format("the CPU has no {} of these types", op->kind));
  });
}

prun_status workspace(const prun_op* op, size_t* bytes, prun_result* result) {
  return done(result, [&] { *bytes = OneOp(*op).workspace_bytes(); });
}

// Takes any index: ranks share the host's cores.
prun_status open(const prun_device_params* params, prun_dev** dev, prun_result* result) {
  if (*params->options != '\0')
    return failed(PRUN_EINVAL, result, fmt::format("there is no option '{}': it has none", params->options));
  return *dev = new prun_dev, PRUN_OK;
}
void close(prun_dev* dev) { delete dev; }

prun_status alloc(prun_dev* dev, size_t bytes, int, void** ptr, prun_result* result) {
  void* made = bytes <= PTRDIFF_MAX ? std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign) : nullptr;
  if (made == nullptr) return failed(PRUN_ENOMEM, result, fmt::format("no {} bytes of memory", bytes));
  return *ptr = dev->memory.keep(static_cast<std::byte*>(made)), PRUN_OK;
}
void free(prun_dev* dev, void* ptr, int) { dev->memory.free(static_cast<std::byte*>(ptr)); }
prun_status memory_info(prun_dev*, uint64_t* free_bytes, uint64_t* total_bytes) {
  *free_bytes = memory_bytes("MemAvailable:");
  *total_bytes = memory_bytes("MemTotal:");
  return PRUN_OK;
}

prun_status stream_create(prun_dev* dev, int, prun_stream** stream, prun_result* result) {
  return done(result, [&] { *stream = dev->streams.keep(new prun_stream); });
}
void stream_free(prun_dev* dev, prun_stream* stream) { dev->streams.free(stream); }
prun_queue stream_queue(prun_dev*, prun_stream*) { return {PRUN_MEM_HOST, nullptr}; }
prun_status stream_test(prun_dev*, prun_stream* stream, prun_result* result) {
  return guarded(result, [&] { return stream->stream.idle() ? PRUN_OK : PRUN_AGAIN; });
}
prun_status stream_wait(prun_dev*, prun_stream* stream, prun_result* result) {
  return done(result, [&] { stream->stream.wait(); });
}

prun_status event_create(prun_dev* dev, int, prun_event** event, prun_result* result) {
  return done(result, [&] { *event = dev->events.keep(new prun_event); });
}
void event_free(prun_dev* dev, prun_event* event) { dev->events.free(event); }
prun_status event_record(prun_dev* dev, prun_event* event, prun_stream* stream, int, prun_result* result) {
  return done(result, [&] { dev->issuer.issue({&stream->stream, {}, event->state, {}}); });
}
prun_status event_wait(prun_dev* dev, prun_stream* stream, prun_event* event, prun_result* result) {
  return done(result, [&] { dev->issuer.issue({&stream->stream, {}, {}, event->state}); });
}
prun_status event_test(prun_dev*, prun_event* event, prun_result*) {
  std::lock_guard lock(event->state->mutex);
  return event->state->completed >= event->state->recorded ? PRUN_OK : PRUN_AGAIN;
}
prun_status event_elapsed(prun_dev*, prun_event* from, prun_event* to, double* ms, prun_result*) {
  const auto ns = [](const prun_event& event) {
    std::lock_guard lock(event.state->mutex);
    return static_cast<double>(event.state->ns);
  };
  *ms = (ns(*to) - ns(*from)) / 1e6;
  return PRUN_OK;
}

prun_status copy(prun_dev* dev, prun_stream* stream, void* to, const void* from, size_t bytes, prun_result* result) {
  return enqueue(dev, stream, result, [=] { std::memcpy(to, from, bytes); });
}
prun_status zero(prun_dev* dev, prun_stream* stream, void* ptr, size_t bytes, prun_result* result) {
  return enqueue(dev, stream, result, [=] { std::memset(ptr, 0, bytes); });
}

prun_status host_call(prun_dev* dev, prun_stream* stream, void (*function)(void*), void* data, prun_result* result) {
  return enqueue(dev, stream, result, [=] { function(data); });
}

prun_status kernel_create(prun_dev* dev, const prun_op* op, prun_kernel** kernel, prun_result* result) {
  if (const prun_status status = supports(op, result); status != PRUN_OK) return status;
  return done(result, [&] { *kernel = dev->kernels.keep(new prun_kernel(*op)); });
}
void kernel_free(prun_dev* dev, prun_kernel* kernel) { dev->kernels.free(kernel); }
prun_status kernel_run(prun_dev* dev, prun_kernel* kernel, prun_stream* stream, prun_result* result) {
  return enqueue(dev, stream, result, [kernel] { kernel->kernel->run(); });
}

prun_status capture_begin(prun_dev* dev, prun_stream* stream, prun_result* result) {
  return done(result, [&] { dev->issuer.begin_capture(&stream->stream); });
}
prun_status capture_end(prun_dev* dev, prun_stream* stream, prun_graph** graph, prun_result* result) {
  return done(result, [&] { *graph = dev->graphs.keep(new prun_graph{dev->issuer.end_capture(&stream->stream)}); });
}
prun_status graph_launch(prun_dev* dev, prun_graph* graph, prun_stream* stream, prun_result* result) {
  return done(result, [&] { dev->issuer.launch(*graph->graph, &stream->stream); });
}
void graph_free(prun_dev* dev, prun_graph* graph) { dev->graphs.free(graph); }

prun_status pin(prun_dev*, void*, size_t, prun_result*) { return PRUN_OK; }
void unpin(prun_dev*, void*) {}

constexpr prun_device kTable = {
    .size = sizeof(prun_device),
    .abi = PRUN_DEVICE_ABI,
    .must_understand = 0,
    .name = "cpu-queue",
    .version = "1.0.0",
    .summary = "the CPU, driven as a GPU is: for tests",
    .mem_kind = PRUN_MEM_HOST,
    .probe = probe,
    .describe = describe,
    .supports = supports,
    .workspace = workspace,
    .open = open,
    .close = close,
    .alloc = alloc,
    .free = free,
    .memory_info = memory_info,
    .stream_create = stream_create,
    .stream_free = stream_free,
    .stream_queue = stream_queue,
    .stream_test = stream_test,
    .stream_wait = stream_wait,
    .event_create = event_create,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_test = event_test,
    .event_elapsed = event_elapsed,
    .copy = copy,
    .zero = zero,
    .host_call = host_call,
    .kernel_create = kernel_create,
    .kernel_free = kernel_free,
    .kernel_run = kernel_run,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_free = graph_free,
    .pin = pin,
    .unpin = unpin,
    .ext = nullptr,
};

}  // namespace

const prun_device& cpu_queue_table() { return kTable; }

}  // namespace prun
