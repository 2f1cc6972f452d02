// Merges the hops of ring attention that cuDNN computes. cuDNN computes attention over one hop's keys alone, so kernels
// of prun merge its result with that of the previous hops.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/kernels/op.h"

namespace prun::cuda {

// Rows [first, first + count) of each sample attend to this hop's keys.
struct HopRows {
  int64_t batch, length, first, count;
};

// Merges out [batch, length, heads·head] and lse [batch, heads, length] of the previous keys (`out_before`,
// `lse_before`) with those of this hop: `part` [batch, count, heads·head] and `part_lse` [batch, heads, count]. The
// results may be in the memory of the previous ones. All pointers are aligned to 16 bytes, and `head` is a multiple of
// 4.
struct HopOutputs {
  HopRows rows;
  int heads, head;
  const float *part, *part_lse, *out_before, *lse_before;
  float *out, *lse;
};
void merge_hop(cudaStream_t stream, const HopOutputs& hop);

// Computes sum [batch, length, width]: in the hop's rows before + part [batch, count, width], in all other rows before.
// `before` may be null (zeros), or `sum` itself. All pointers are aligned to 16 bytes, and `width` is a multiple of 8.
void add_hop_gradient(cudaStream_t stream, const HopRows& rows, int64_t width, const bf16* part, const float* before,
                      float* sum);

// Copies the hop's rows of `all` [batch, heads, length] to `some` [batch, heads, count].
void take_hop_rows(cudaStream_t stream, const HopRows& rows, int64_t heads, const float* all, float* some);

}  // namespace prun::cuda
