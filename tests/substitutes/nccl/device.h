// The substitute for a CUDA device: host memory, and streams that are queues of work, each with a thread.
//
// What makes it worth testing against: work runs when its turn comes and not when it is called, memory that a device
// could not reach is refused, and a handle that was freed ends the process.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace substitute {

using Work = std::function<void()>;

// At the end of the stream; into the graph where it is being captured.
void enqueue(cudaStream_t stream, Work work);
// Whether a device could reach all of it.
bool reachable(const void* ptr, size_t bytes);
[[noreturn]] void die(const char* why);        // the plugin has done what would crash with the real library
int setting(const char* name, int otherwise);  // an environment variable: PRUN_SUBSTITUTE_name

}  // namespace substitute
