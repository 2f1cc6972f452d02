// A small device, streams of threads and one op, that is right; or, with the option way=NAME, wrong in one thing, which
// the suite has to find (wrong_devices_test.py). Its options are known only when it is opened, so what comes before is
// right.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "prun/device.h"
#include "runtime/device/cpu_queue/streams.h"

using prun::cpu_queue::Event;
using prun::cpu_queue::EventState;
using prun::cpu_queue::Graph;
using prun::cpu_queue::Issuer;
using prun::cpu_queue::Stream;

struct prun_dev {
  std::string way;
  Issuer issuer;
  std::vector<prun_stream*> streams;
  std::vector<void*> memory;
  bool capturing = false;
};
struct prun_stream {
  Stream stream;
};
struct prun_event {
  Event state = std::make_shared<EventState>();
};
struct prun_kernel {
  const float* x;
  float* y;
  int64_t n;
  float factor;
};
struct prun_graph {
  std::unique_ptr<Graph> graph;
};

namespace {

const char* const kWays[] = {"",      "zero",   "early",   "edges",   "captured", "once",     "kept",
                             "scale", "random", "now",     "aligned", "blocks",   "messages", "twice",
                             "calls", "late",   "crashes", "hangs",   "closes"};

prun_status failed(prun_status status, prun_result* result, const std::string& why) {
  const size_t room = result->size - std::min(result->size, offsetof(prun_result, message));
  if (room > 0) result->message[why.copy(result->message, std::min(room, sizeof result->message) - 1)] = '\0';
  return status;
}

template <class Body>
prun_status guarded(prun_result* result, const Body& body) {
  try {
    body();
    return PRUN_OK;
  } catch (const std::exception& error) {
    return failed(PRUN_EINVAL, result, error.what());
  }
}

void name(char* to, size_t size, const char* text) { snprintf(to, size, "%s", text); }

prun_status probe(prun_device_probe* probe) {
  prun_device_probe ours{.size = std::min(probe->size, sizeof ours), .devices = 1};
  memcpy(probe, &ours, ours.size);
  return PRUN_OK;
}
prun_status describe(int index, prun_device_info* info, prun_result* result) {
  if (index != 0) return failed(PRUN_ENOTSUP, result, "there is one");
  prun_device_info ours{.size = std::min(info->size, sizeof ours)};
  name(ours.name, sizeof ours.name, "wrong");
  ours.total_bytes = ours.free_bytes = 1 << 28;
  memcpy(info, &ours, ours.size);
  return PRUN_OK;
}

prun_status supports(const prun_op* op, prun_result* result) {
  if (strcmp(op->kind, "scale") == 0 && op->reads[0].dtype == PRUN_F32) return PRUN_OK;
  return failed(PRUN_ENOTSUP, result, std::string("only scale of f32 is there, no ") + op->kind);
}
prun_status workspace(const prun_op*, size_t* bytes, prun_result*) { return *bytes = 0, PRUN_OK; }

prun_status open(const prun_device_params* params, prun_dev** dev, prun_result* result) {
  const std::string options = params->options, way = options.substr(std::min<size_t>(4, options.size()));
  const bool known = options.empty() || options == "way=" + way;
  if (!known || std::find(std::begin(kWays), std::end(kWays), way) == std::end(kWays))
    return failed(PRUN_EINVAL, result, "there is no option " + options);
  (*dev = new prun_dev)->way = way;
  return PRUN_OK;
}
void close(prun_dev* dev) {
  if (dev->way == "closes") return;
  for (prun_stream* stream : dev->streams) delete stream;
  for (void* ptr : dev->memory) free(ptr);
  delete dev;
}

prun_status alloc(prun_dev* dev, size_t bytes, int, void** ptr, prun_result* result) {
  const size_t align = dev->way == "aligned" ? 16 : 256;
  if (bytes > size_t{1} << 40) return failed(PRUN_ENOMEM, result, dev->way == "messages" ? "" : "so much is not there");
  *ptr = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  return dev->memory.push_back(*ptr), PRUN_OK;
}
void release(prun_dev* dev, void* ptr, int) { std::erase(dev->memory, ptr), free(ptr); }
prun_status memory_info(prun_dev*, uint64_t* free_bytes, uint64_t* total) {
  return *free_bytes = *total = 1 << 28, PRUN_OK;
}

prun_status stream_create(prun_dev* dev, int, prun_stream** stream, prun_result*) {
  return dev->streams.push_back(*stream = new prun_stream), PRUN_OK;
}
void stream_free(prun_dev* dev, prun_stream* stream) { std::erase(dev->streams, stream), delete stream; }
prun_queue stream_queue(prun_dev*, prun_stream*) { return {PRUN_MEM_HOST, nullptr}; }
prun_status stream_test(prun_dev*, prun_stream* stream, prun_result*) {
  return stream->stream.idle() ? PRUN_OK : PRUN_AGAIN;
}
prun_status stream_wait(prun_dev* dev, prun_stream* stream, prun_result*) {
  while (dev->way == "hangs") pause();
  return stream->stream.wait(), PRUN_OK;
}

prun_status event_create(prun_dev*, int, prun_event** event, prun_result*) { return *event = new prun_event, PRUN_OK; }
void event_free(prun_dev*, prun_event* event) { delete event; }
prun_status event_record(prun_dev* dev, prun_event* event, prun_stream* stream, int, prun_result* result) {
  return guarded(result, [&] { dev->issuer.issue({&stream->stream, {}, event->state, {}}); });
}
prun_status event_wait(prun_dev* dev, prun_stream* stream, prun_event* event, prun_result* result) {
  return guarded(result, [&] { dev->issuer.issue({&stream->stream, {}, {}, event->state}); });
}
prun_status event_test(prun_dev* dev, prun_event* event, prun_result*) {
  std::lock_guard lock(event->state->mutex);
  return dev->way == "early" || event->state->completed >= event->state->recorded ? PRUN_OK : PRUN_AGAIN;
}
uint64_t ns(prun_event* event) {
  std::lock_guard lock(event->state->mutex);
  return event->state->ns;
}
prun_status event_elapsed(prun_dev* dev, prun_event* from, prun_event* to, double* ms, prun_result*) {
  const double unit = dev->way == "late" ? 1e3 : 1e6;  // microseconds
  return *ms = (static_cast<double>(ns(to)) - static_cast<double>(ns(from))) / unit, PRUN_OK;
}

prun_status work(prun_dev* dev, prun_stream* stream, const std::function<void()>& body, prun_result* result) {
  if (dev->way == "captured" && dev->capturing) body();
  return guarded(result, [&] { dev->issuer.issue({&stream->stream, body, {}, {}}); });
}
prun_status copy(prun_dev* dev, prun_stream* stream, void* to, const void* from, size_t bytes, prun_result* result) {
  if (dev->way == "now" && !dev->capturing) return memcpy(to, from, bytes), PRUN_OK;
  if (dev->way == "kept" && dev->capturing) {  // what is there now
    const std::vector<char> seen(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    return work(
        dev, stream, [=] { memcpy(to, seen.data(), seen.size()); }, result);
  }
  return work(
      dev, stream, [=] { memcpy(to, from, bytes); }, result);
}
prun_status zero(prun_dev* dev, prun_stream* stream, void* ptr, size_t bytes, prun_result* result) {
  const size_t done = dev->way == "zero" ? bytes / 4 * 4 : bytes;
  return work(
      dev, stream, [=] { memset(ptr, 0, done); }, result);
}
prun_status host_call(prun_dev* dev, prun_stream* stream, void (*function)(void*), void* data, prun_result* result) {
  if (dev->way == "calls") return function(data), PRUN_OK;
  const bool twice = dev->way == "twice";
  const prun_status status = work(
      dev, stream, [=] { function(data), twice ? function(data) : void(); }, result);
  if (dev->way == "blocks" && !dev->capturing) stream->stream.wait();
  return status;
}

prun_status kernel_create(prun_dev* dev, const prun_op* op, prun_kernel** kernel, prun_result* result) {
  if (const prun_status status = supports(op, result); status != PRUN_OK) return status;
  if (dev->way == "crashes") raise(SIGSEGV);
  float factor = 0;
  for (size_t i = 0; i < op->n_attrs; ++i)
    if (strcmp(op->attrs[i].name, "factor") == 0) factor = static_cast<float>(op->attrs[i].number);
  int64_t n = 1;
  for (int i = 0; i < op->reads[0].rank; ++i) n *= op->reads[0].dims[i];
  if (dev->way == "scale") factor *= 1.0001F;
  *kernel =
      new prun_kernel{static_cast<const float*>(op->reads[0].ptr), static_cast<float*>(op->writes[0].ptr), n, factor};
  return PRUN_OK;
}
void kernel_free(prun_dev*, prun_kernel* kernel) { delete kernel; }
prun_status kernel_run(prun_dev* dev, prun_kernel* kernel, prun_stream* stream, prun_result* result) {
  static int runs = 0;
  const float bit = dev->way == "random" && ++runs % 2 == 0 ? 1 + 0x1p-23F : 1;
  return work(
      dev, stream,
      [=, k = *kernel] { std::transform(k.x, k.x + k.n, k.y, [&](float x) { return k.factor * x * bit; }); }, result);
}

prun_status capture_begin(prun_dev* dev, prun_stream* stream, prun_result* result) {
  const prun_status status = guarded(result, [&] { dev->issuer.begin_capture(&stream->stream); });
  dev->capturing = true;
  return status;
}
prun_status capture_end(prun_dev* dev, prun_stream* stream, prun_graph** graph, prun_result* result) {
  dev->capturing = false;
  return guarded(result, [&] {
    std::unique_ptr<Graph> made = dev->issuer.end_capture(&stream->stream);
    if (dev->way == "edges") std::erase_if(made->calls, [](const auto& call) { return call.wait != nullptr; });
    *graph = new prun_graph{std::move(made)};
  });
}
prun_status graph_launch(prun_dev* dev, prun_graph* graph, prun_stream* stream, prun_result* result) {
  return guarded(result, [&] {
    dev->issuer.launch(*graph->graph, &stream->stream);
    if (dev->way == "once") graph->graph->calls.clear();
  });
}
void graph_free(prun_dev*, prun_graph* graph) { delete graph; }

constexpr prun_device kTable = {.size = sizeof(prun_device),
                                .abi = PRUN_DEVICE_ABI,
                                .must_understand = 0,
                                .name = "wrong",
                                .version = "1.0.0",
                                .summary = "one op, and what it is told to do wrong",
                                .mem_kind = PRUN_MEM_HOST,
                                .probe = probe,
                                .describe = describe,
                                .supports = supports,
                                .workspace = workspace,
                                .open = open,
                                .close = close,
                                .alloc = alloc,
                                .free = release,
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
                                .graph_free = graph_free};

}  // namespace

const prun_device* prun_device_v1(uint32_t abi) { return abi < PRUN_DEVICE_ABI ? nullptr : &kTable; }
