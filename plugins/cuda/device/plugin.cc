// The class from which prun/sdk/device.h makes the table of functions. Most functions are one CUDA call.
#include <utility>

#include "context.h"
#include "cuda/kernels/op.h"
#include "memory.h"
#include "probe.h"
#include "prun/layout.h"
#include "prun/sdk/device.h"
#include "stream.h"

namespace prun::cuda {
namespace {

class Gpu {
 public:
  using Stream = cuda::Stream;
  using Event = cuda::Event;
  using Kernel = cuda::Kernel;
  using Graph = cuda::Graph;

  explicit Gpu(const prun_device_params& params) : context_(params), memory_(context_) {}
  void use() const { context_.use(); }
  static void freed() { cudaGetLastError(); }

  static void probe(prun_device_probe& probe) { probe_machine(probe); }
  static void describe(int index, prun_device_info& info) { describe_device(index, info); }
  static std::string why_refused(const prun_op& op) { return cuda::why_refused(OpView(op, nullptr)); }
  static size_t workspace(const prun_op& op) {
    options_of(op);  // reports wrong options for ops without scratch, too
    const KernelEntry* entry = find_entry(op.kind);
    const size_t bytes = entry == nullptr || entry->workspace == nullptr ? 0 : entry->workspace(OpView(op, nullptr));
    return bytes > 0 ? bytes + kScratchAlign : 0;  // extra bytes allow alignment at any offset of the arena
  }

  void* alloc(size_t bytes, int place) { return memory_.allocate(bytes, place); }
  void free(void* ptr, int) { memory_.release(ptr); }
  void pin(void* ptr, size_t bytes) { memory_.pin(ptr, bytes); }
  void unpin(void* ptr) { memory_.unpin(ptr); }
  void memory_info(uint64_t& free_bytes, uint64_t& total_bytes) {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    free_bytes = free;
    total_bytes = total;
  }

  // Creates a stream. close waits for these streams only, not for those of other libraries on this device.
  std::unique_ptr<Stream> stream_create(int priority) { return std::make_unique<Stream>(context_, priority); }
  prun_queue stream_queue(const Stream& stream) { return {PRUN_MEM_CUDA, stream.handle}; }
  bool stream_test(const Stream& stream) { return stream.idle(); }
  void stream_wait(const Stream& stream) { check(cudaStreamSynchronize(stream.handle), "cudaStreamSynchronize"); }

  std::unique_ptr<Event> event_create(bool timed) { return std::make_unique<Event>(timed); }
  void event_record(Event& event, const Stream& stream, bool external) { event.record(stream, external); }
  void event_wait(const Stream& stream, const Event& event) {
    check(cudaStreamWaitEvent(stream.handle, event.handle, 0), "cudaStreamWaitEvent");
  }
  bool event_test(const Event& event) { return event.reached(); }
  double event_elapsed(const Event& from, const Event& to) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, from.handle, to.handle), "cudaEventElapsedTime");
    return ms;
  }

  void copy(const Stream& stream, void* to, const void* from, size_t bytes) {
    if (bytes != 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.handle), "cudaMemcpyAsync");
  }
  void zero(const Stream& stream, void* ptr, size_t bytes) {
    if (bytes != 0) check(cudaMemsetAsync(ptr, 0, bytes, stream.handle), "cudaMemsetAsync");
  }
  void host_call(const Stream& stream, void (*function)(void*), void* data) {
    check(cudaLaunchHostFunc(stream.handle, function, data), "cudaLaunchHostFunc");
  }

  std::unique_ptr<Kernel> kernel_create(const prun_op& op) {
    const OpView view(op, &context_);
    if (const std::string why = cuda::why_refused(view); !why.empty()) throw Failure(PRUN_ENOTSUP, why);
    auto made = find_entry(view.kind())->make(view);
    // CUDA loads a kernel at its first launch and may wait for the device's work to do so. That work may be a
    // collective that waits for a peer that is loading, too, so the first launch is a rehearsal.
    rehearse(context_, [&](cudaStream_t stream) { made->run(stream); });
    return made;
  }
  void kernel_run(Kernel& kernel, const Stream& stream) { kernel.run(stream.handle); }

  void capture_begin(const Stream& stream) { begin_capture(stream); }
  std::unique_ptr<Graph> capture_end(const Stream& stream) { return std::make_unique<Graph>(stream); }
  void graph_launch(const Graph& graph, const Stream& stream) {
    check(cudaGraphLaunch(graph.handle, stream.handle), "cudaGraphLaunch");
  }

  static const void* ext(std::string_view id);

 private:
  Context context_;
  Memory memory_;
};

// Requests all fusions, because kernels that cannot fuse are no slower than the separate ops (gemm.cc).
int wants_fused(const char* kind) { return find_entry(kind) != nullptr; }
constexpr prun_device_fusion kFusion = {sizeof(prun_device_fusion), wants_fused};

prun_status examine(int index, prun_health_report* out, prun_result* result) {
  return sdk::guarded(result, [&] {
    prun_health_report ours{};
    examine_device(index, ours);
    sdk::write_sized(ours, out);
  });
}
constexpr prun_health kHealth = {sizeof(prun_health), examine};

// The layout of parameters. Rows of bf16 begin at multiples of 128 bytes, as TMA and whole tiles of wgmma require.
constexpr prun_device_layout kLayout = {.size = sizeof(prun_device_layout), .vocabulary_multiple = 64};

const void* Gpu::ext(std::string_view id) {
  if (id == PRUN_DEVICE_LAYOUT) return &kLayout;
  if (id == PRUN_DEVICE_FUSION) return &kFusion;
  return id == PRUN_HEALTH ? &kHealth : nullptr;
}

}  // namespace
}  // namespace prun::cuda

extern "C" const prun_device* prun_device_v1(uint32_t abi) {
  static const std::string summary = "NVIDIA GPUs, by CUDA " + prun::cuda::cuda_version(CUDART_VERSION);
  return prun::sdk::device_table<prun::cuda::Gpu>(
      abi, {.name = "cuda", .version = "1.0.0", .summary = summary.c_str(), .mem_kind = PRUN_MEM_CUDA});
}
