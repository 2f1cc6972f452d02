// The functions that a kernel compiled for the CPU calls: indexes of its thread, and synchronization within a block.
//
// Surprising fact: a thread runs without interruption until it has to wait for others. So data that it reads from them
// without a barrier is most likely missing.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <source_location>

#pragma GCC visibility push(default)

// CUDA's names.
extern constinit thread_local uint3 threadIdx __attribute__((tls_model("initial-exec")));
extern constinit thread_local uint3 blockIdx __attribute__((tls_model("initial-exec")));
extern constinit thread_local dim3 blockDim __attribute__((tls_model("initial-exec")));
extern constinit thread_local dim3 gridDim __attribute__((tls_model("initial-exec")));
constexpr int warpSize = 32;

namespace substitute {

extern constinit thread_local unsigned char* dynamic_shared __attribute__((tls_model("initial-exec")));

using Here = std::source_location;

// Waits for all threads of the block.
void meet_block(const char* what, const Here& here);

// One lane's part of an operation of the lanes of a warp.
struct Lane {
  const void* given = nullptr;
  void* got = nullptr;
};
// Waits for the lanes of `mask`. The last of them calls `combine` with all 32, where `given` is null for lanes that are
// not in the mask or have ended; it fills the memory behind `got`.
using Combine = void (*)(const Lane (&lanes)[32]);
void meet_warp(unsigned mask, const char* what, const Here& here, Lane lane, Combine combine);
unsigned lane_id();
[[noreturn]] void die_in_kernel(const char* why, const char* what, const Here& here);

// Returns whether the memory is in the running block's shared memory.
bool is_shared(const void* ptr, size_t bytes);
// Copies for the running thread, at the latest possible time: when it calls wait_for_copies. From null: zeros.
void copy_later(void* to, const void* from, size_t bytes);
void wait_for_copies();

// Enqueues a launch as cudaLaunchKernelEx does. `shared` returns an address in the static shared memory of the kernel's
// library, as seen by the calling thread.
cudaError_t launch_kernel(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> body,
                          const void* (*shared)());
cudaError_t allow_shared_bytes(const void* kernel, cudaFuncAttribute attribute, int value);

}  // namespace substitute

#pragma GCC visibility pop
