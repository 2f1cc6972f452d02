// Attention in bf16 by cuDNN's fused kernels: of a whole sequence, and of one hop of ring attention.
//
// On every rank and hop the queries that attend to any key are a run of rows. Either each attends to the same prefix of
// the hop's keys, or the hop is the causal diagonal. So one graph computes a hop, and attention_hops.h merges it with
// the previous ones.
//
// The gradient is bitwise identical in every run if cuDNN stores the gradients of all scores. With the option
// deterministic=0 threads instead add to f32 sums of dq in any order. Either way a batch is processed in slices of
// samples and heads, so that this memory does not exceed the option attention_workspace.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>

#include "attention.h"

namespace prun::cuda {

inline constexpr size_t kCudnnForwardBytes = 256;

struct CudnnSlice {
  int64_t batch = 0, kv_heads = 0;  // extents of a slice; 0: no slice is small enough
  size_t sums_bytes = 0;            // bytes of dq's sums, which are zeroed before each run
  size_t bytes = 0;  // bytes of the sums and of cuDNN's workspace, as its plans report it (cudnn_plan_test.cc)
};
inline CudnnSlice cudnn_backward_slice(const AttentionSizes& s, const Options& options) {
  const bool deterministic = options.deterministic;
  const auto padded = [](int64_t rows, int64_t to) { return (rows + to - 1) / to * to; };
  const int64_t group = s.group(), queries = padded(s.length, 64), scores = queries * padded(s.keys, 128);
  const auto slice = [&](int64_t batch, int64_t kv_heads) -> CudnnSlice {
    const int64_t heads = batch * kv_heads * group;
    const int64_t shared = group > 1 ? 2 * heads * s.keys * int64_t{s.head + s.value} : 0;
    const int64_t sums = deterministic ? 0 : (4 * heads * s.length * s.head + 255) / 256 * 256;
    // Scratch of scores (before Hopper, of sums), and dk and dv of each head of a group.
    const int64_t gradients = deterministic ? 2 * heads * scores : 4 * heads * queries * s.head;
    return {batch, kv_heads, static_cast<size_t>(sums), static_cast<size_t>(sums + gradients + shared + 256)};
  };
  for (int64_t batch = s.batch; batch > 0; --batch)
    if (const CudnnSlice found = slice(batch, s.kv_heads);
        s.batch % batch == 0 && found.bytes <= options.attention_workspace)
      return found;
  for (int64_t heads = s.kv_heads; heads > 0; --heads)
    if (const CudnnSlice found = slice(1, heads); s.kv_heads % heads == 0 && found.bytes <= options.attention_workspace)
      return found;
  return {};
}

// Both return the bytes of additional scratch of a hop: its output and log-sum-exps before they are merged (f32), and
// its gradients (bf16). They are sized for the largest hop, because ranks of one program have hops of several shapes.
inline size_t cudnn_hop_forward_bytes(const AttentionSizes& s) {
  return static_cast<size_t>(s.batch * s.length * s.heads * (s.head + 1)) * sizeof(float) + 2 * kScratchAlign;
}
inline size_t cudnn_hop_backward_bytes(const AttentionSizes& s) {
  return static_cast<size_t>(s.batch * s.length * (s.heads + 2 * s.kv_heads) * s.head) * sizeof(bf16) +
         2 * kScratchAlign;
}

// Returns whether some version of cuDNN supports these sizes on some GPU.
inline bool cudnn_takes(const AttentionSizes& s) {
  return s.head <= 256 && s.head % 8 == 0 && s.value <= 256 && s.value % 8 == 0 && s.length > 1;
}

// Return null if cuDNN is missing, disabled, or does not support the shape; the log reports why, once per shape.
std::unique_ptr<Kernel> cudnn_attention_forward(const OpView& view, const AttentionForward<bf16>& a);
std::unique_ptr<Kernel> cudnn_attention_backward(const OpView& view, const AttentionBackward<bf16>& a);

}  // namespace prun::cuda
