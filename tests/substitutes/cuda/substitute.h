// The substitute for a CUDA device: host memory, and streams that are queues of work, each with a thread.
//
// What makes it worth testing against: work runs when its turn comes and not when it is called, memory that a device
// could not reach is refused, and what would crash or hang a GPU ends the process with a message.
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

// At the end of the stream; into the graph where it is being captured. Work may run more than once, in any thread.
cudaError_t enqueue(cudaStream_t stream, Work work);
// Tells whether that very stream still exists; another one may have got its address.
std::function<bool()> existence(cudaStream_t stream);
// Whether a device could reach all of it.
bool reachable(const void* ptr, size_t bytes);
void refuse_in_host_function();                        // ends the process where a host function calls CUDA
[[noreturn]] void die(const std::string& why);         // prun has done what would crash with the real library
size_t used_bytes(int device);                         // of its memory, by this process
int64_t setting(const char* name, int64_t otherwise);  // an environment variable: PRUN_SUBSTITUTE_name

}  // namespace substitute

#pragma GCC visibility pop
