// Captures: work that is enqueued on streams becomes nodes of a graph, and events between them its edges.
#pragma once
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "substitute.h"

namespace substitute {

struct Stream;
struct Event;

struct Node {
  Work work;
  std::vector<size_t> after;     // earlier nodes of the same graph
  std::shared_ptr<Event> event;  // recorded by the node, instead of work
};
struct Graph {
  std::vector<Node> nodes;
};

struct Capture {
  Graph graph;
  std::shared_ptr<Stream> origin;
  std::vector<std::shared_ptr<Stream>> streams;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false, over = false;
};

std::mutex& captures_lock();  // of the state of every capture, and of the capture fields of streams and events

bool capturing(cudaStream_t stream);
// Moves work into the capture of its stream, and returns whether there is one.
bool take(const std::shared_ptr<Stream>& stream, Work& work, cudaError_t* error);
// Captures the record of an external event in the same way.
cudaError_t take_record(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event);
// Invalidates the capture of that stream; returns `error`.
cudaError_t invalidate(cudaStream_t stream, cudaError_t error);
// For calls that CUDA considers unsafe during a capture (allocations, synchronization): returns an error if they are
// forbidden to this thread, and then invalidates the capture.
cudaError_t refuse_in_capture();

}  // namespace substitute
