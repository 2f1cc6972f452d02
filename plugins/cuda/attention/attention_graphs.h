// Attention in bf16 as graphs of cuDNN's operations, over q, k and v that are stored wherever the op has them.
#pragma once
#include <compare>
#include <cstdint>

#include "cudnn_plan.h"

namespace prun::cuda {

// Elements from a row to the next, and from a sample to the next. A head's elements are contiguous, and so are the
// heads of a row.
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
  bool f32_out = false;     // forward's out is f32, for a later sum with other keys' output
  auto operator<=>(const CudnnAttentionShape&) const =
      default;  // NOLINT(modernize-use-nullptr): of the generated comparison
};

// Tensors in memory: q, k, v, out, lse.
CudnnGraph attention_graph(const CudnnAttentionShape& shape);

// Tensors in memory: q, k, v, out, dout, lse, dots [batch, heads, queries] f32 of scratch (strides as lse), dq, dk, dv.
// `lse` and `out` may be those of more keys than are here (ring attention).
// `summed`: after them dq's sums [batch, heads, queries, head] f32, zeros before each run, to which threads add in any
// order: that needs no memory for gradients of scores, but gives other bits in each run.
CudnnGraph attention_gradient_graph(const CudnnAttentionShape& shape, bool summed = false);

}  // namespace prun::cuda
