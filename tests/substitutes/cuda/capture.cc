// The rules of "CUDA Graphs" in the programming guide: how captures begin, spread to other streams and end, and which
// calls invalidate them.
#include "capture.h"

#include <algorithm>
#include <set>
#include <utility>

#include "machine.h"
#include "stream.h"

namespace substitute {
namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

std::set<std::shared_ptr<Capture>>& captures() {  // in progress
  static auto* instance = new std::set<std::shared_ptr<Capture>>;
  return *instance;
}

void add(std::vector<size_t>* nodes, const std::vector<size_t>& more) {
  for (const size_t node : more)
    if (std::find(nodes->begin(), nodes->end(), node) == nodes->end()) nodes->push_back(node);
}

void join(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Capture>& capture, std::vector<size_t> last) {
  stream->capture = capture;
  stream->last = std::move(last);
  capture->streams.push_back(stream);
}

cudaError_t append(Stream& stream, Node node) {
  if (stream.capture->invalid) return cudaErrorStreamCaptureInvalidated;
  std::vector<Node>& nodes = stream.capture->graph.nodes;
  node.after = std::exchange(stream.last, {nodes.size()});
  nodes.push_back(std::move(node));
  return cudaSuccess;
}

// Returns whether all work that the other streams have captured precedes the end of the first one.
bool joined(const Capture& capture) {
  std::vector<bool> reached(capture.graph.nodes.size());
  std::vector<size_t> next = capture.origin->last;
  while (!next.empty()) {
    const size_t node = next.back();
    next.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    add(&next, capture.graph.nodes[node].after);
  }
  return std::all_of(capture.streams.begin(), capture.streams.end(), [&](const auto& stream) {
    return std::all_of(stream->last.begin(), stream->last.end(), [&](size_t node) { return reached[node]; });
  });
}

cudaError_t end(const std::shared_ptr<Stream>& stream, Graph** graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  cudaError_t error = cudaSuccess;
  if (capture->origin != stream)
    error = cudaErrorStreamCaptureUnmatched;
  else if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    return cudaErrorStreamCaptureWrongThread;
  else if (capture->invalid)
    error = cudaErrorStreamCaptureInvalidated;
  else if (!joined(*capture))
    error = cudaErrorStreamCaptureUnjoined;
  if (error == cudaErrorStreamCaptureUnmatched) {
    capture->invalid = true;
    return error;
  }
  for (const auto& member : capture->streams) member->capture = nullptr, member->last.clear();
  capture->over = true;
  captures().erase(capture);
  if (error == cudaSuccess) *graph = new Graph(capture->graph);
  return error;
}

cudaError_t wait_in_capture(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event) {
  const std::shared_ptr<Capture>& source = event->capture;
  if (source == nullptr) {  // recorded by work outside of the capture
    stream->capture->invalid = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (source->over) return cudaErrorCapturedEvent;
  if (source->invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream->capture == nullptr) {
    join(stream, source, event->last);
  } else if (stream->capture != source) {
    stream->capture->invalid = source->invalid = true;
    return cudaErrorStreamCaptureMerge;
  } else {
    add(&stream->last, event->last);
  }
  return cudaSuccess;
}

}  // namespace

std::mutex& captures_lock() {
  static auto* instance = new std::mutex;
  return *instance;
}

bool capturing(cudaStream_t stream) {
  const StreamHandle handle = of(stream);
  std::lock_guard lock(captures_lock());
  return handle->capture != nullptr;
}

bool take(const std::shared_ptr<Stream>& stream, Work& work, cudaError_t* error) {
  std::lock_guard lock(captures_lock());
  if (stream->capture == nullptr) return false;
  *error = append(*stream, {std::move(work), {}, nullptr});
  return true;
}

cudaError_t take_record(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event) {
  std::lock_guard lock(captures_lock());
  if (stream->capture == nullptr) return cudaErrorIllegalState;
  event->capture = nullptr;
  return append(*stream, {{}, {}, event});
}

cudaError_t invalidate(cudaStream_t stream, cudaError_t error) {
  const StreamHandle handle = of(stream);
  std::lock_guard lock(captures_lock());
  if (handle->capture != nullptr) handle->capture->invalid = true;
  return error;
}

cudaError_t refuse_in_capture() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  std::lock_guard lock(captures_lock());
  for (const auto& capture : captures()) {
    const bool mine = capture->thread == std::this_thread::get_id();
    const bool forbidden =
        mine ? capture->mode != cudaStreamCaptureModeRelaxed
             : capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (!forbidden) continue;
    capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

}  // namespace substitute

using substitute::of;
using substitute::result;

ENTRY cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(substitute::thread_mode, *mode);
  return cudaSuccess;
}
ENTRY cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const auto handle = of(stream);
  std::lock_guard lock(substitute::captures_lock());
  *status = handle->capture == nullptr ? cudaStreamCaptureStatusNone
            : handle->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
ENTRY cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr || stream == cudaStreamLegacy) return result(cudaErrorStreamCaptureUnsupported);
  const auto handle = of(stream);
  std::lock_guard lock(substitute::captures_lock());
  if (handle->capture != nullptr) return result(cudaErrorIllegalState);
  auto capture = std::make_shared<substitute::Capture>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = handle;
  substitute::join(handle, capture, {});
  substitute::captures().insert(capture);
  return cudaSuccess;
}
ENTRY cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const auto handle = of(stream);
  substitute::Graph* made = nullptr;
  std::lock_guard lock(substitute::captures_lock());
  const cudaError_t error = substitute::end(handle, &made);
  *graph = reinterpret_cast<cudaGraph_t>(made);
  return result(error);
}
ENTRY cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  const auto waits = of(stream);
  const auto handle = of(event);
  {
    std::lock_guard lock(substitute::captures_lock());
    const bool external = flags == cudaEventWaitExternal;
    if (external && waits->capture == nullptr) return result(cudaErrorIllegalState);
    if (!external && (waits->capture != nullptr || handle->capture != nullptr))
      return result(substitute::wait_in_capture(waits, handle));
  }
  uint64_t ticket = 0;
  {
    std::lock_guard lock(handle->mutex);
    ticket = handle->recorded;
  }
  return result(substitute::enqueue(stream, [handle, ticket] {
    std::unique_lock lock(handle->mutex);
    handle->changed.wait(lock, [&] { return handle->completed >= ticket; });
  }));
}
