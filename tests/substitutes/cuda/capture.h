// Captures: what is enqueued on streams becomes nodes of a graph, and events between them its edges.
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
  std::shared_ptr<Event> event;  // that it records, instead of work
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

std::mutex& captures_lock();  // of every capture's state, and of the streams' and events' share of it

bool capturing(cudaStream_t stream);
// Takes part of an enqueued work into the capture of its stream. False: there is none.
bool take(const std::shared_ptr<Stream>& stream, Work& work, cudaError_t* error);
// In the same way the record of an event that the host sees.
cudaError_t take_record(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event);
// The capture of that stream has failed; returns `error`.
cudaError_t invalidate(cudaStream_t stream, cudaError_t error);
// For calls that CUDA calls unsafe while somebody captures (allocations, synchronization): an error where they are
// forbidden to this thread, and then they spoil the capture.
cudaError_t refuse_in_capture();

}  // namespace substitute
