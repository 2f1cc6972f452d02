// Attention in bf16 as graphs of cuDNN's operations, for any strides of q, k and v.
#pragma once
#include <compare>
#include <cstdint>

#include "cudnn_plan.h"

namespace prun::cuda {

// Strides in elements: to the next row, and to the next sample. A head's elements are contiguous, and so are the heads
// of a row.
struct CudnnStrides {
  int64_t row, sample;
  auto operator<=>(const CudnnStrides&) const = default;  // NOLINT(modernize-use-nullptr): of the generated comparison
};

struct CudnnAttentionShape {
  int64_t batch, queries, keys, heads, kv_heads, head;
  CudnnStrides q, kv, out;  // kv: of k and of v; out: of dout, too
  CudnnStrides dq, dkv;     // only read for gradients
  CudnnStrides lse;         // row: from a head to the next
  bool causal;              // query i attends to keys 0..i; otherwise each query attends to all keys
  bool f32_out = false;     // the forward out is f32, to be merged with the output of other keys
  auto operator<=>(const CudnnAttentionShape&) const =
      default;  // NOLINT(modernize-use-nullptr): of the generated comparison
};

// Returns the forward graph. Tensors in memory: q, k, v, out, lse.
CudnnGraph attention_graph(const CudnnAttentionShape& shape);

// Returns the backward graph. Tensors in memory: q, k, v, out, dout, lse, dots [batch, heads, queries] f32 of scratch
// (strides as lse), dq, dk, dv. `lse` and `out` may include other keys than these (ring attention). With `summed` the
// f32 sums of dq [batch, heads, queries, head] follow; they are zeroed before each run, and threads add to them in any
// order. This needs no memory for gradients of scores, but rounds differently in each run.
CudnnGraph attention_gradient_graph(const CudnnAttentionShape& shape, bool summed = false);

}  // namespace prun::cuda
