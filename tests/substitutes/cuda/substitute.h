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
void refuse_in_host_function();                 // ends the process if a host function calls CUDA
[[noreturn]] void die(const std::string& why);  // for errors of prun that would crash the real library
size_t used_bytes(int device);                  // of its memory, by this process

// Returns the environment variable PRUN_SUBSTITUTE_name:
//
//   DEVICES (16), CAPABILITY (90), MULTIPROCESSORS (4), MEMORY_MIB (8192)   the devices
//   OTHER             devices from this number on are another model, of capability 8.0 (none)
//   DRIVER            version as cudaDriverGetVersion returns it; 0: no driver
//   SEED              of the order of blocks, threads and branches (1)
//   CONTEXT_MIB       device memory of a process's context (0)
//   COMPUTE_MODE (0, CUDA's numbers), MIG (0), ECC (1), PEERS (2: NVLink, 1: PCIe, 0: none)
//   BUSY              a device that another process has exclusively
//   EPILOGUES=0, ALGORITHMS=0, REFUSED, REFUSED_LATE, FUSED_FAST, FUSED_SLOW, ROUGH   cuBLASLt (blas.cc)
//   CUDNN=1           cuDNN is available; by default prun's kernels do the work
//   CUDNN_REFUSED=1   it makes plans and executes none
//   FLUSH=1           subnormals are zeros, as under --ftz=true
//
// management.cc lists those of NVML. An empty CUDA_VISIBLE_DEVICES hides all devices.
int64_t setting(const char* name, int64_t otherwise);

}  // namespace substitute

#pragma GCC visibility pop
