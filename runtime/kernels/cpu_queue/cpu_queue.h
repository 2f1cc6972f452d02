// The CPU behind prun/device.h: kernels of the CPU device on streams that are queues, each with a thread.
//
// It is the second device of that interface, so that all code that drives a GPU (the executor for queue devices,
// staging, graphs, tools/gpu-check) is tested on machines without one. `--device cpu` is faster, because its streams
// call kernels themselves.
#pragma once
#include "prun/device.h"

namespace prun {

const prun_device& cpu_queue_table();

}  // namespace prun
