#include "stream.h"

#include <exception>
#include <memory>

#include "context.h"
#include "failure.h"

namespace prun::cuda {
namespace {

// Returns whether the work has finished. "Not ready" is no error, but CUDA records it as the thread's last error, which
// libraries read.
bool finished(cudaError_t error, const char* call) {
  if (error == cudaErrorNotReady) return cudaGetLastError(), false;
  return check(error, call), true;
}

}  // namespace

// Creates a non-blocking stream, which does not wait for the default stream, because another library may use that one.
Stream::Stream(Context& context_, int priority) : context(context_) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, priority < 0 ? greatest : least),
        "cudaStreamCreateWithPriority");
}

Stream::~Stream() {
  context.leave_stream();
  cudaStreamDestroy(handle);
}

bool Stream::capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(handle, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

bool Stream::idle() const { return finished(cudaStreamQuery(handle), "cudaStreamQuery"); }

Event::Event(bool timed) {
  check(cudaEventCreateWithFlags(&handle, timed ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
}

Event::~Event() { cudaEventDestroy(handle); }

// Records the event. CUDA accepts the flag for external events only during a capture; otherwise every event is
// external.
void Event::record(const Stream& stream, bool external) {
  const unsigned flags = external && stream.capturing() ? cudaEventRecordExternal : cudaEventRecordDefault;
  check(cudaEventRecordWithFlags(handle, stream.handle, flags), "cudaEventRecordWithFlags");
}

bool Event::reached() const { return finished(cudaEventQuery(handle), "cudaEventQuery"); }

// Instantiates a graph with node priorities, so that communication keeps its stream's priority inside the graph.
// Uploads it at once, so that the first launch costs as much as all others.
Graph::Graph(const Stream& stream) {
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

Graph::~Graph() { cudaGraphExecDestroy(handle); }

// Captures in relaxed mode: the graph contains only work that is enqueued on these streams, whatever calls this or
// another thread makes meanwhile (a transport that polls its events, a library that loads its kernels).
void begin_capture(const Stream& stream) {
  check(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
}

void rehearse(Context& context, const std::function<void(cudaStream_t)>& enqueue) {
  const Stream stream(context, 0);
  begin_capture(stream);
  std::exception_ptr failure;
  try {
    enqueue(stream.handle);
  } catch (...) {
    failure = std::current_exception();
  }
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.handle, &captured);
  if (failure) {
    if (captured != nullptr) cudaGraphDestroy(captured);
    cudaGetLastError();  // clears the error of the capture's end
    std::rethrow_exception(failure);
  }
  check(ended, "cudaStreamEndCapture");
  cudaGraphExec_t ready = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&ready, captured, 0);
  cudaGraphDestroy(captured);
  check(made, "cudaGraphInstantiate");
  cudaGraphExecDestroy(ready);
}

}  // namespace prun::cuda
