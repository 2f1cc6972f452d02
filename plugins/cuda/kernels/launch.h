// The only way to launch a kernel. tests/substitutes/cuda compiles kernels for the CPU and the same call runs them
// there, so no file of this plugin uses <<< >>>.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device/failure.h"

// PRUN_SHARED(name) in a kernel: the dynamic shared memory of its launch, aligned to 16 bytes. The substitute defines
// its own.
#ifndef PRUN_SHARED
#define PRUN_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

namespace prun::cuda {

// Throws Failure if CUDA refuses the launch.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;  // an empty grid would be an error
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), "cudaLaunchKernelEx");
}

// Returns the blocks of `threads` for `count` elements, at most `most`, because kernels stride over the grid.
inline unsigned blocks_for(int64_t count, int threads, int64_t most = 65535 * 16) {
  const int64_t blocks = (count + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

}  // namespace prun::cuda
