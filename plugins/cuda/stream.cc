#include "stream.h"

#include <exception>
#include <memory>

#include "context.h"
#include "failure.h"

using prun::cuda::check;

namespace {

// "Not ready" is no error, but CUDA keeps it as the thread's last one, where libraries would find it.
prun_status status_of_query(cudaError_t error, const char* call) {
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return PRUN_AGAIN;
  }
  check(error, call);
  return PRUN_OK;
}

}  // namespace

// Non-blocking: nothing waits for the default stream, on which some other library may work.
prun_stream::prun_stream(int priority) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, priority < 0 ? greatest : least),
        "cudaStreamCreateWithPriority");
}

prun_stream::~prun_stream() { cudaStreamDestroy(handle); }

bool prun_stream::capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(handle, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

prun_status prun_stream::test() const { return status_of_query(cudaStreamQuery(handle), "cudaStreamQuery"); }

prun_event::prun_event(bool timed) {
  check(cudaEventCreateWithFlags(&handle, timed ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
}

prun_event::~prun_event() { cudaEventDestroy(handle); }

// CUDA knows the flag for external events only while it captures; without a capture every event is one.
void prun_event::record(const prun_stream& stream, bool external) {
  const unsigned flags = external && stream.capturing() ? cudaEventRecordExternal : cudaEventRecordDefault;
  check(cudaEventRecordWithFlags(handle, stream.handle, flags), "cudaEventRecordWithFlags");
}

prun_status prun_event::test() const { return status_of_query(cudaEventQuery(handle), "cudaEventQuery"); }

// Node priorities: communication keeps its stream's priority inside the graph. Uploaded at once, so that the first
// launch costs what all others do.
prun_graph::prun_graph(const prun_stream& stream) {
  cudaGraph_t captured = nullptr;
  check(cudaStreamEndCapture(stream.handle, &captured), "cudaStreamEndCapture");
  const auto destroy = [](cudaGraph_t graph) { cudaGraphDestroy(graph); };
  const std::unique_ptr<CUgraph_st, decltype(destroy)> graph(captured, destroy);
  check(cudaGraphInstantiate(&handle, captured, cudaGraphInstantiateFlagUseNodePriority), "cudaGraphInstantiate");
  if (const cudaError_t error = cudaGraphUpload(handle, stream.handle); error != cudaSuccess) {
    cudaGraphExecDestroy(handle);
    check(error, "cudaGraphUpload");
  }
}

prun_graph::~prun_graph() { cudaGraphExecDestroy(handle); }

// Relaxed: only what is enqueued on these streams belongs to the graph, whatever this or another thread calls meanwhile
// (a transport that polls its events, a library that loads its kernels).
void prun::cuda::begin_capture(const prun_stream& stream) {
  check(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
}

void prun::cuda::rehearse(Context& context, const std::function<void(cudaStream_t)>& enqueue) {
  const prun_stream stream(0);
  begin_capture(stream);
  std::exception_ptr failure;
  try {
    enqueue(stream.handle);
  } catch (...) {
    failure = std::current_exception();
  }
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.handle, &captured);
  context.leave_stream();
  if (failure) {
    if (captured != nullptr) cudaGraphDestroy(captured);
    cudaGetLastError();  // of the capture's end
    std::rethrow_exception(failure);
  }
  check(ended, "cudaStreamEndCapture");
  cudaGraphExec_t ready = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&ready, captured, 0);
  cudaGraphDestroy(captured);
  check(made, "cudaGraphInstantiate");
  cudaGraphExecDestroy(ready);
}
