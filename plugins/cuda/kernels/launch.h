// How every kernel is launched. Under tests/substitutes/cuda, where kernels are compiled for the CPU, the same call
// runs them there: so this is the only way to launch one, and no file of this plugin writes <<< >>>.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device/failure.h"

// PRUN_SHARED(name) in a kernel: the bytes of shared memory that its launch gave, aligned to 16. The substitute has its
// own.
#ifndef PRUN_SHARED
#define PRUN_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

namespace prun::cuda {

// Throws Failure for a launch that CUDA refuses.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;  // nothing to do: CUDA takes it for an error
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), "cudaLaunchKernelEx");
}

// Blocks of `threads` for `count` elements, at most `most`: kernels stride over the grid.
inline unsigned blocks_for(int64_t count, int threads, int64_t most = 65535 * 16) {
  const int64_t blocks = (count + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

}  // namespace prun::cuda
