// Attention in bf16 as graphs of cuDNN's operations, with q, k and v packed in one tensor as in the op.
#pragma once
#include <compare>
#include <cstdint>

#include "cudnn_plan.h"

namespace prun::cuda {

struct CudnnAttentionShape {
  int64_t batch, length, heads, kv_heads, head;
  int64_t all_heads, all_kv_heads;  // that lie beside each other in a row: more than `heads` where this is a slice
  bool causal;
  auto operator<=>(const CudnnAttentionShape&) const = default;
};

// Tensors in memory: q, k, v, out, lse.
CudnnGraph attention_graph(const CudnnAttentionShape& shape);

// Tensors in memory: q, k, v, out, dout, lse, dots [batch, heads, length] f32 of scratch, dq, dk, dv.
// `summed`: behind them dq's sums [batch, heads, length, head] f32, zeros before each run, to which threads add in any
// order: that needs no memory for gradients of scores, but gives other bits in each run. A yardstick for tools/bench.
CudnnGraph attention_gradient_graph(const CudnnAttentionShape& shape, bool summed = false);

}  // namespace prun::cuda
