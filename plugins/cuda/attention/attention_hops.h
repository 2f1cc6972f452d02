// Merges the hops of ring attention that cuDNN computes. cuDNN computes attention over one hop's keys alone, so kernels
// of prun combine its result with that of the previous hops.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/kernels/op.h"

namespace prun::cuda {

// Rows first..first + count - 1 of each sample are those that attend to this hop's keys.
struct HopRows {
  int64_t batch, length, first, count;
};

// out [batch, length, heads·head] and lse [batch, heads, length] of the keys before (`out_before`, `lse_before`) and of
// this hop's: `part` [batch, count, heads·head] and `part_lse` [batch, heads, count]. The results may be in the memory
// of those before. All pointers are aligned to 16 bytes, and `head` is a multiple of 4.
struct HopOutputs {
  HopRows rows;
  int heads, head;
  const float *part, *part_lse, *out_before, *lse_before;
  float *out, *lse;
};
void merge_hop(cudaStream_t stream, const HopOutputs& hop);

// sum [batch, length, width] = before + part [batch, count, width] in its rows, and before in all others. `before` may
// be null (zeros), or `sum` itself. All pointers are aligned to 16 bytes, and `width` is a multiple of 8.
void add_hop_gradient(cudaStream_t stream, const HopRows& rows, int64_t width, const bf16* part, const float* before,
                      float* sum);

}  // namespace prun::cuda
