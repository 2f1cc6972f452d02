// Streams, events and graphs: what work is enqueued on, what orders it, and work that is enqueued again as a whole.
// Each is destroyed by its owner (plugin.cc) once the device has nothing to do with it.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>

#include "prun/device.h"

struct prun_stream {
  explicit prun_stream(int priority);  // 0, or -1 for work that should start first
  ~prun_stream();
  prun_stream(const prun_stream&) = delete;
  prun_stream& operator=(const prun_stream&) = delete;

  bool capturing() const;
  prun_status test() const;  // PRUN_AGAIN: work is left

  cudaStream_t handle = nullptr;
};

struct prun_event {
  explicit prun_event(bool timed);
  ~prun_event();
  prun_event(const prun_event&) = delete;
  prun_event& operator=(const prun_event&) = delete;

  void record(const prun_stream& stream, bool external);
  prun_status test() const;

  cudaEvent_t handle = nullptr;
};

struct prun_graph {
  // Ends the capture that `stream` began. Throws Failure where something that was enqueued cannot be captured.
  explicit prun_graph(const prun_stream& stream);
  ~prun_graph();
  prun_graph(const prun_graph&) = delete;
  prun_graph& operator=(const prun_graph&) = delete;

  cudaGraphExec_t handle = nullptr;
};

namespace prun::cuda {

void begin_capture(const prun_stream& stream);

class Context;
// Captures the work that `enqueue` puts on its stream, instantiates a graph of it and drops the graph. So kernels are
// loaded and launches are checked, but nothing runs. Throws the exceptions of `enqueue`, and Failure if no graph
// results.
void rehearse(Context& context, const std::function<void(cudaStream_t)>& enqueue);

}  // namespace prun::cuda
