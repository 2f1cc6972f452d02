// The table: each function is a few calls of streams.h and kernel.h, with exceptions turned into statuses.
#include "device/cpu_queue/cpu_queue.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>

#include "base/error.h"
#include "device/cpu_queue/kernel.h"
#include "device/cpu_queue/streams.h"

using prun::cpu_queue::Event;
using prun::cpu_queue::EventState;
using prun::cpu_queue::Graph;
using prun::cpu_queue::Issuer;
using prun::cpu_queue::OneOp;
using prun::cpu_queue::Stream;

struct prun_dev {
  Issuer issuer;
};
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

constexpr size_t kAlign = 256;

prun_status failed(prun_status status, prun_result* result, const char* why) {
  fmt::format_to_n(result->message, sizeof result->message - 1, "{}", why).out[0] = '\0';
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

uint64_t memory_bytes(const char* wanted) {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  for (uint64_t kilobytes = 0; meminfo >> key >> kilobytes; std::getline(meminfo, unit))
    if (key == wanted) return kilobytes * 1024;
  return 0;
}

prun_status probe(prun_device_probe* probe) {
  probe->devices = 1;
  std::strncpy(probe->runtime, "threads", sizeof probe->runtime);
  return PRUN_OK;
}

prun_status describe(int, prun_device_info* info, prun_result*) {
  std::strncpy(info->name, "CPU", sizeof info->name);
  std::strncpy(info->id, "cpu", sizeof info->id);
  info->total_bytes = memory_bytes("MemTotal:");
  info->free_bytes = memory_bytes("MemAvailable:");
  return PRUN_OK;
}

prun_status supports(const prun_op* op, prun_result* result) {
  return guarded(result, [&] { return OneOp(*op).supported() ? PRUN_OK : PRUN_ENOTSUP; });
}

prun_status workspace(const prun_op* op, size_t* bytes, prun_result* result) {
  return guarded(result, [&] { return *bytes = static_cast<size_t>(OneOp(*op).workspace_bytes()), PRUN_OK; });
}

prun_status open(const prun_device_params* params, prun_dev** dev, prun_result* result) {
  if (*params->options != '\0') return failed(PRUN_EINVAL, result, "it has no options");
  return *dev = new prun_dev, PRUN_OK;
}
void close(prun_dev* dev) { delete dev; }

prun_status alloc(prun_dev*, size_t bytes, int, void** ptr, prun_result* result) {
  *ptr = std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
  return *ptr != nullptr ? PRUN_OK : failed(PRUN_ENOMEM, result, "out of memory");
}
void free(prun_dev*, void* ptr, int) { std::free(ptr); }
prun_status memory_info(prun_dev*, uint64_t* free_bytes, uint64_t* total_bytes) {
  *free_bytes = memory_bytes("MemAvailable:");
  *total_bytes = memory_bytes("MemTotal:");
  return PRUN_OK;
}

prun_status stream_create(prun_dev*, int, prun_stream** stream, prun_result* result) {
  return guarded(result, [&] { return *stream = new prun_stream, PRUN_OK; });
}
void stream_free(prun_dev*, prun_stream* stream) { delete stream; }
prun_queue stream_queue(prun_dev*, prun_stream*) { return {PRUN_MEM_HOST, nullptr}; }
prun_status stream_test(prun_dev*, prun_stream* stream, prun_result* result) {
  return guarded(result, [&] { return stream->stream.idle() ? PRUN_OK : PRUN_AGAIN; });
}
prun_status stream_wait(prun_dev*, prun_stream* stream, prun_result* result) {
  return guarded(result, [&] { return stream->stream.wait(), PRUN_OK; });
}

prun_status event_create(prun_dev*, int, prun_event** event, prun_result*) { return *event = new prun_event, PRUN_OK; }
void event_free(prun_dev*, prun_event* event) { delete event; }
prun_status event_record(prun_dev* dev, prun_event* event, prun_stream* stream, int, prun_result* result) {
  return guarded(result, [&] { return dev->issuer.issue({&stream->stream, {}, event->state, {}}), PRUN_OK; });
}
prun_status event_wait(prun_dev* dev, prun_stream* stream, prun_event* event, prun_result* result) {
  return guarded(result, [&] { return dev->issuer.issue({&stream->stream, {}, {}, event->state}), PRUN_OK; });
}
prun_status event_test(prun_dev*, prun_event* event, prun_result*) {
  std::lock_guard lock(event->state->mutex);
  return event->state->completed >= event->state->recorded ? PRUN_OK : PRUN_AGAIN;
}
prun_status event_elapsed(prun_dev*, prun_event* from, prun_event* to, double* ms, prun_result*) {
  std::scoped_lock lock(from->state->mutex, to->state->mutex);
  *ms = (static_cast<double>(to->state->ns) - static_cast<double>(from->state->ns)) / 1e6;
  return PRUN_OK;
}

prun_status copy(prun_dev* dev, prun_stream* stream, void* to, const void* from, size_t bytes, prun_result* result) {
  return guarded(result, [&] {
    dev->issuer.issue({&stream->stream, [=] { std::memcpy(to, from, bytes); }, {}, {}});
    return PRUN_OK;
  });
}
prun_status zero(prun_dev* dev, prun_stream* stream, void* ptr, size_t bytes, prun_result* result) {
  return guarded(result, [&] {
    dev->issuer.issue({&stream->stream, [=] { std::memset(ptr, 0, bytes); }, {}, {}});
    return PRUN_OK;
  });
}

prun_status host_call(prun_dev* dev, prun_stream* stream, void (*function)(void*), void* data, prun_result* result) {
  return guarded(result, [&] {
    dev->issuer.issue({&stream->stream, [=] { function(data); }, {}, {}});
    return PRUN_OK;
  });
}

prun_status kernel_create(prun_dev*, const prun_op* op, prun_kernel** kernel, prun_result* result) {
  return guarded(result, [&] { return *kernel = new prun_kernel(*op), PRUN_OK; });
}
void kernel_free(prun_dev*, prun_kernel* kernel) { delete kernel; }
prun_status kernel_run(prun_dev* dev, prun_kernel* kernel, prun_stream* stream, prun_result* result) {
  return guarded(result, [&] {
    dev->issuer.issue({&stream->stream, [kernel] { kernel->kernel->run(); }, {}, {}});
    return PRUN_OK;
  });
}

prun_status capture_begin(prun_dev* dev, prun_stream* stream, prun_result* result) {
  return guarded(result, [&] { return dev->issuer.begin_capture(&stream->stream), PRUN_OK; });
}
prun_status capture_end(prun_dev* dev, prun_stream* stream, prun_graph** graph, prun_result* result) {
  return guarded(result, [&] {
    *graph = new prun_graph{dev->issuer.end_capture(&stream->stream)};
    return PRUN_OK;
  });
}
prun_status graph_launch(prun_dev* dev, prun_graph* graph, prun_stream* stream, prun_result* result) {
  return guarded(result, [&] { return dev->issuer.launch(*graph->graph, &stream->stream), PRUN_OK; });
}
void graph_free(prun_dev*, prun_graph* graph) { delete graph; }

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
