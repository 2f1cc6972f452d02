// The substitute for a CUDA device: host memory, and streams that are queues of work, each with a thread.
//
// It makes tests strict: work runs later than its call, memory that a device could not reach is refused, and an error
// that would crash or hang a GPU ends the process with a message.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#define ENTRY extern "C" __attribute__((visibility("default")))
#pragma GCC visibility push(default)

namespace substitute {

using Work = std::function<void()>;

// Appends work to the stream, or to the graph that is captured from it. Work may run more than once, in any thread.
cudaError_t enqueue(cudaStream_t stream, Work work);
// Returns a function that reports whether that very stream still exists; another stream may have its address.
std::function<bool()> existence(cudaStream_t stream);
// Returns whether a device could reach all of it.
bool reachable(const void* ptr, size_t bytes);
void refuse_in_host_function();                        // ends the process if a host function calls CUDA
[[noreturn]] void die(const std::string& why);         // for errors of prun that would crash the real library
size_t used_bytes(int device);                         // of its memory, by this process
int64_t setting(const char* name, int64_t otherwise);  // an environment variable: PRUN_SUBSTITUTE_name

}  // namespace substitute

#pragma GCC visibility pop
