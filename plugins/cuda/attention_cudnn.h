// Attention in bf16 by cuDNN's fused kernels, with q, k and v packed in one tensor.
//
// Its gradient gives the same bits in every run where cuDNN keeps the scores' gradients in memory, which are as many as
// the scores. So a batch is worked through in slices, of samples and heads, for which this memory is bounded.
#pragma once
#include <cstddef>
#include <memory>

#include "attention.h"

namespace prun_cuda {

inline constexpr size_t kCudnnForwardBytes = 256;

struct CudnnSlice {
  int64_t batch = 0, kv_heads = 0;  // of a slice; 0: none is small enough
  size_t bytes = 0;                 // of cuDNN's workspace, as its plans have it (cudnn_plan_test.cc)
};
inline CudnnSlice cudnn_backward_slice(const AttentionSizes& s) {
  constexpr int64_t kMost = int64_t{256} << 20;
  const int64_t padded = (s.length + 63) / 64 * 64, group = s.group();
  const auto bytes = [&](int64_t batch, int64_t kv_heads) {
    const int64_t heads = batch * kv_heads * group, scores = heads * padded * padded;
    return 2 * (scores + (group > 1 ? 2 * heads * s.length * s.head : 0)) + 256;  // dk and dv of each head of a group
  };
  for (int64_t batch = s.batch; batch > 0; --batch)
    if (s.batch % batch == 0 && bytes(batch, s.kv_heads) <= kMost)
      return {batch, s.kv_heads, static_cast<size_t>(bytes(batch, s.kv_heads))};
  for (int64_t heads = s.kv_heads; heads > 0; --heads)
    if (s.kv_heads % heads == 0 && bytes(1, heads) <= kMost) return {1, heads, static_cast<size_t>(bytes(1, heads))};
  return {};
}

// Null where cuDNN is missing, unwanted, or does not take the shape; the log says why, once for each shape.
std::unique_ptr<Kernel> cudnn_attention_forward(const OpView& view, const AttentionForward<bf16>& a);
std::unique_ptr<Kernel> cudnn_attention_backward(const OpView& view, const AttentionBackward<bf16>& a);

}  // namespace prun_cuda
