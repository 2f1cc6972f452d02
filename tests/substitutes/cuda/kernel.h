// What a kernel compiled for the CPU calls: where its thread stands, and places at which threads of a block meet.
//
// Surprising fact: a thread runs undisturbed until it has to wait for others. So what it reads of them without a
// barrier between is most likely not there yet.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <source_location>

#pragma GCC visibility push(default)

// As CUDA names them.
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

// One lane's part of something that lanes of a warp do together.
struct Lane {
  const void* given = nullptr;
  void* got = nullptr;
};
// Waits for the lanes of `mask`. The last of them calls `combine` with all 32, where `given` is null for lanes that are
// not in the mask or have left; it fills what `got` points to.
using Combine = void (*)(const Lane (&lanes)[32]);
void meet_warp(unsigned mask, const char* what, const Here& here, Lane lane, Combine combine);
unsigned lane_id();
[[noreturn]] void die_in_kernel(const char* why, const char* what, const Here& here);

// Whether the running block's shared memory has it.
bool is_shared(const void* ptr, size_t bytes);
// A copy of the running thread that is done when it waits, as it has to; from null: zeros.
void copy_later(void* to, const void* from, size_t bytes);
void wait_for_copies();

// Enqueues a launch as cudaLaunchKernelEx does. `shared` returns an address among the static shared memory of the
// kernel's library, as the calling thread has it.
cudaError_t launch_kernel(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> body,
                          const void* (*shared)());
cudaError_t allow_shared_bytes(const void* kernel, cudaFuncAttribute attribute, int value);

}  // namespace substitute

#pragma GCC visibility pop
