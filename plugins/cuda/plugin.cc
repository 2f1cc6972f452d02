// The table of functions of the CUDA device. Exceptions end here: each function turns a Failure into a status.
//
// Surprising fact: what a caller forgets to free is freed by close, in the order that CUDA wants: prun_dev owns all of
// it.
#include <memory>
#include <unordered_map>
#include <utility>

#include "context.h"
#include "health.h"
#include "memory.h"
#include "op.h"
#include "probe.h"
#include "prun/layout.h"
#include "stream.h"

struct prun_kernel {
  explicit prun_kernel(std::unique_ptr<prun::cuda::Kernel> kernel) : body(std::move(kernel)) {}
  std::unique_ptr<prun::cuda::Kernel> body;
};

namespace prun::cuda {
namespace {

template <class T>
class Owned {
 public:
  template <class... Args>
  T* make(Args&&... args) {
    auto made = std::make_unique<T>(std::forward<Args>(args)...);
    T* address = made.get();
    all_.emplace(address, std::move(made));
    return address;
  }
  void free(T* address) { all_.erase(address); }
  const auto& all() const { return all_; }

 private:
  std::unordered_map<const T*, std::unique_ptr<T>> all_;
};

}  // namespace
}  // namespace prun::cuda

// Members are destroyed from the last to the first.
struct prun_dev {
  explicit prun_dev(const prun_device_params& params) : context(params), memory(context) {}

  prun::cuda::Context context;
  prun::cuda::Memory memory;
  prun::cuda::Owned<prun_stream> streams;
  prun::cuda::Owned<prun_event> events;
  prun::cuda::Owned<prun_kernel> kernels;
  prun::cuda::Owned<prun_graph> graphs;
};

namespace prun::cuda {
namespace {

using sdk::guarded;

// body() with the device current in this thread.
template <class Body>
prun_status on_device(prun_dev* dev, prun_result* result, const Body& body) {
  return guarded(result, [&] {
    dev->context.use();
    return body();
  });
}

// For functions that cannot fail: by then an error of the device has been told by what came before.
template <class Body>
void freeing(prun_dev* dev, const Body& body) {
  cudaSetDevice(dev->context.index());
  body();
  cudaGetLastError();
}

prun_status probe(prun_device_probe* out) {
  return guarded(nullptr, [&] {
    prun_device_probe ours{.size = std::min(out->size, sizeof ours)};
    probe_machine(ours);
    std::memcpy(out, &ours, ours.size);
  });
}

prun_status describe(int index, prun_device_info* out, prun_result* result) {
  return guarded(result, [&] {
    prun_device_info ours{.size = std::min(out->size, sizeof ours)};
    describe_device(index, ours);
    std::memcpy(out, &ours, ours.size);
  });
}

prun_status supports(const prun_op* op, prun_result* result) {
  return guarded(result, [&] {
    const std::string why = why_refused(OpView(*op, nullptr));
    return why.empty() ? Failure() : Failure(PRUN_ENOTSUP, why);
  });
}

prun_status workspace(const prun_op* op, size_t* bytes, prun_result* result) {
  return guarded(result, [&] {
    options_of(*op);  // wrong ones are an error for ops without scratch, too
    const KernelEntry* entry = find_entry(op->kind);
    *bytes = entry == nullptr || entry->workspace == nullptr ? 0 : entry->workspace(OpView(*op, nullptr));
    if (*bytes > 0) *bytes += kScratchAlign;  // so that it can begin there wherever the arena puts it
  });
}

prun_status open(const prun_device_params* params, prun_dev** dev, prun_result* result) {
  return guarded(result, [&] { *dev = new prun_dev(*params); });
}

// Only its own streams are waited for: those of other libraries on this device are none of its business.
void close(prun_dev* dev) {
  freeing(dev, [&] {
    for (const auto& [stream, owner] : dev->streams.all()) cudaStreamSynchronize(stream->handle);
    dev->context.leave_stream();
    delete dev;
  });
}

prun_status alloc(prun_dev* dev, size_t bytes, int place, void** ptr, prun_result* result) {
  return on_device(dev, result, [&] { *ptr = dev->memory.allocate(bytes, place); });
}

void free(prun_dev* dev, void* ptr, int) {
  freeing(dev, [&] { dev->memory.release(ptr); });
}

prun_status memory_info(prun_dev* dev, uint64_t* free_bytes, uint64_t* total_bytes) {
  return on_device(dev, nullptr, [&] {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    *free_bytes = free;
    *total_bytes = total;
  });
}

prun_status stream_create(prun_dev* dev, int priority, prun_stream** stream, prun_result* result) {
  return on_device(dev, result, [&] { *stream = dev->streams.make(priority); });
}

void stream_free(prun_dev* dev, prun_stream* stream) {
  freeing(dev, [&] {
    dev->context.leave_stream();
    dev->streams.free(stream);
  });
}

prun_queue stream_queue(prun_dev*, prun_stream* stream) { return {PRUN_MEM_CUDA, stream->handle}; }

prun_status stream_test(prun_dev* dev, prun_stream* stream, prun_result* result) {
  return on_device(dev, result, [&] { return stream->test(); });
}

prun_status stream_wait(prun_dev* dev, prun_stream* stream, prun_result* result) {
  return on_device(dev, result, [&] { check(cudaStreamSynchronize(stream->handle), "cudaStreamSynchronize"); });
}

prun_status event_create(prun_dev* dev, int timed, prun_event** event, prun_result* result) {
  return on_device(dev, result, [&] { *event = dev->events.make(timed != 0); });
}

void event_free(prun_dev* dev, prun_event* event) {
  freeing(dev, [&] { dev->events.free(event); });
}

prun_status event_record(prun_dev* dev, prun_event* event, prun_stream* stream, int external, prun_result* result) {
  return on_device(dev, result, [&] { event->record(*stream, external != 0); });
}

prun_status event_wait(prun_dev* dev, prun_stream* stream, prun_event* event, prun_result* result) {
  return on_device(dev, result,
                   [&] { check(cudaStreamWaitEvent(stream->handle, event->handle, 0), "cudaStreamWaitEvent"); });
}

prun_status event_test(prun_dev* dev, prun_event* event, prun_result* result) {
  return on_device(dev, result, [&] { return event->test(); });
}

prun_status event_elapsed(prun_dev* dev, prun_event* from, prun_event* to, double* ms, prun_result* result) {
  return on_device(dev, result, [&] {
    float elapsed = 0;
    check(cudaEventElapsedTime(&elapsed, from->handle, to->handle), "cudaEventElapsedTime");
    *ms = elapsed;
  });
}

prun_status copy(prun_dev* dev, prun_stream* stream, void* to, const void* from, size_t bytes, prun_result* result) {
  return on_device(dev, result, [&] {
    if (bytes != 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream->handle), "cudaMemcpyAsync");
  });
}

prun_status zero(prun_dev* dev, prun_stream* stream, void* ptr, size_t bytes, prun_result* result) {
  return on_device(dev, result, [&] {
    if (bytes != 0) check(cudaMemsetAsync(ptr, 0, bytes, stream->handle), "cudaMemsetAsync");
  });
}

prun_status host_call(prun_dev* dev, prun_stream* stream, void (*function)(void*), void* data, prun_result* result) {
  return on_device(dev, result,
                   [&] { check(cudaLaunchHostFunc(stream->handle, function, data), "cudaLaunchHostFunc"); });
}

prun_status kernel_create(prun_dev* dev, const prun_op* op, prun_kernel** kernel, prun_result* result) {
  return on_device(dev, result, [&] {
    const OpView view(*op, &dev->context);
    if (const std::string why = why_refused(view); !why.empty()) throw Failure(PRUN_ENOTSUP, why);
    auto made = find_entry(view.kind())->make(view);
    // CUDA loads a kernel at its first launch and may wait for the device's work to do so. That work may be a
    // collective that waits for a peer that is loading, too, so the first launch is a rehearsal.
    rehearse(dev->context, [&](cudaStream_t stream) { made->run(stream); });
    *kernel = dev->kernels.make(std::move(made));
  });
}

void kernel_free(prun_dev* dev, prun_kernel* kernel) {
  freeing(dev, [&] { dev->kernels.free(kernel); });
}

prun_status kernel_run(prun_dev* dev, prun_kernel* kernel, prun_stream* stream, prun_result* result) {
  return on_device(dev, result, [&] { kernel->body->run(stream->handle); });
}

prun_status capture_begin(prun_dev* dev, prun_stream* stream, prun_result* result) {
  return on_device(dev, result, [&] { begin_capture(*stream); });
}

prun_status capture_end(prun_dev* dev, prun_stream* stream, prun_graph** graph, prun_result* result) {
  return on_device(dev, result, [&] { *graph = dev->graphs.make(*stream); });
}

prun_status graph_launch(prun_dev* dev, prun_graph* graph, prun_stream* stream, prun_result* result) {
  return on_device(dev, result, [&] { check(cudaGraphLaunch(graph->handle, stream->handle), "cudaGraphLaunch"); });
}

void graph_free(prun_dev* dev, prun_graph* graph) {
  freeing(dev, [&] { dev->graphs.free(graph); });
}

prun_status pin(prun_dev* dev, void* ptr, size_t bytes, prun_result* result) {
  return on_device(dev, result, [&] { dev->memory.pin(ptr, bytes); });
}

void unpin(prun_dev* dev, void* ptr) {
  freeing(dev, [&] { dev->memory.unpin(ptr); });
}

// All that there is to fuse: kernels that cannot do it in one are no slower than the ops apart (gemm.cc).
int wants_fused(const char* kind) { return find_entry(kind) != nullptr; }
constexpr prun_device_fusion kFusion = {sizeof(prun_device_fusion), wants_fused};

prun_status examine(int index, prun_health_report* out, prun_result* result) {
  return guarded(result, [&] {
    prun_health_report ours{};
    examine_device(index, ours);
    ours.size = std::min(out->size, sizeof ours);
    std::memcpy(out, &ours, ours.size);
  });
}
constexpr prun_health kHealth = {sizeof(prun_health), examine};

// Rows of bf16 begin at multiples of 128 bytes, as TMA and whole tiles of wgmma want them.
constexpr prun_device_layout kLayout = {.size = sizeof(prun_device_layout), .vocabulary_multiple = 64};

const void* extension(const char* id) {
  if (std::string_view(id) == PRUN_DEVICE_LAYOUT) return &kLayout;
  if (std::string_view(id) == PRUN_DEVICE_FUSION) return &kFusion;
  return std::string_view(id) == PRUN_HEALTH ? &kHealth : nullptr;
}

const std::string kSummary = "NVIDIA GPUs, by CUDA " + cuda_version(CUDART_VERSION);
const prun_device kTable = {
    .size = sizeof(prun_device),
    .abi = PRUN_DEVICE_ABI,
    .must_understand = 0,
    .name = "cuda",
    .version = "1.0.0",
    .summary = kSummary.c_str(),
    .mem_kind = PRUN_MEM_CUDA,
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
    .ext = extension,
};

}  // namespace
}  // namespace prun::cuda

extern "C" const prun_device* prun_device_v1(uint32_t abi) {
  return abi < PRUN_DEVICE_ABI ? nullptr : &prun::cuda::kTable;
}
