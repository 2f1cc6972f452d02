// Streams, events, and graphs, which replay captured work. Each is destroyed by its owner (prun/sdk/device.h) once the
// device no longer uses it.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>

namespace prun::cuda {

class Context;

struct Stream {
  Stream(Context& context, int priority);  // 0, or -1 for work that should start first
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool capturing() const;
  bool idle() const;  // returns whether no work is left

  Context& context;
  cudaStream_t handle = nullptr;
};

struct Event {
  explicit Event(bool timed);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream, bool external);
  bool reached() const;

  cudaEvent_t handle = nullptr;
};

struct Graph {
  // Ends the capture that `stream` began. Throws Failure if some enqueued work cannot be captured.
  explicit Graph(const Stream& stream);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  cudaGraphExec_t handle = nullptr;
};

void begin_capture(const Stream& stream);

// Captures the work that `enqueue` puts on its stream, instantiates a graph of it and drops the graph. So kernels are
// loaded and launches are checked, but nothing runs. Throws the exceptions of `enqueue`, and Failure if no graph
// results.
void rehearse(Context& context, const std::function<void(cudaStream_t)>& enqueue);

}  // namespace prun::cuda
