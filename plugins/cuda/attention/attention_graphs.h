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
  int64_t batch, queries, keys, heads, kv_heads;
  int64_t head, value;        // elements of a head of q and k, and of v and out
  float scale;                // factor of q·k
  CudnnStrides q, k, v, out;  // out: of dout, too
  CudnnStrides dq, dk, dv;    // only read for gradients
  bool causal;                // query i attends to keys 0..i; otherwise each query attends to all keys
  int64_t window = 0;         // of a causal attention: query i attends to the last `window` of its keys; 0: to all
  float cap = 0;              // scores become cap·tanh(score / cap); 0: they do not
  bool f32_out = false;       // the forward out is f32, to be merged with the output of other keys
  auto operator<=>(const CudnnAttentionShape&) const =
      default;  // NOLINT(modernize-use-nullptr): of the generated comparison
};

// Returns the forward graph. Tensors in memory: q, k, v, out, lse [batch, heads, queries]. Statistics have no strides,
// because before 9.26 cuDNN's gradient reads them as if they were contiguous.
CudnnGraph attention_graph(const CudnnAttentionShape& shape);

// Returns the backward graph. Tensors in memory: q, k, v, out, dout, lse, dots [batch, heads, queries] f32 of scratch,
// dq, dk, dv. `lse` and `out` may include other keys than these (ring attention). With `summed` the
// f32 sums of dq [batch, heads, queries, head] follow; they are zeroed before each run, and threads add to them in any
// order. This needs no memory for gradients of scores, but rounds differently in each run.
CudnnGraph attention_gradient_graph(const CudnnAttentionShape& shape, bool summed = false);

}  // namespace prun::cuda
