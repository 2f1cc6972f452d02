// Operands of the attention kernels, for the ops attention and attention_block: the layout of heads, and the keys that
// a query attends to.
//
// Surprising fact: on any rank, hop and chunk, a query attends to a prefix of the local keys, and later queries attend
// to at least as many keys. So the mask is one number per query, and the first and last query of a tile determine
// whether it is masked, full or partial.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "cuda/kernels/op.h"

namespace prun::cuda {

// Heads of one kind in a tensor [batch, length, row]: `data` is the first one's; `row` and `sample` are strides in
// elements.
template <class T>
struct Heads {
  T* data;
  int64_t row, sample;
  __host__ __device__ T* head(int64_t b, int64_t h, int size) const { return data + b * sample + h * size; }
};

// The mask: the number of keys that query t attends to. The rank's tokens are one chunk, or two of `chunk` each.
struct Mask {
  int chunk;
  int seen[2], more[2];  // keys of a chunk's first query; additional keys of each next query
  __host__ __device__ int keys(int t) const {
    return t < chunk ? seen[0] + t * more[0] : seen[1] + (t - chunk) * more[1];
  }
};

struct AttentionSizes {
  int64_t batch;
  int length, heads, kv_heads, head;  // `head`: elements of a head, at most 256
  int keys, value, window;            // read for cuDNN alone, and here `length`, `head`, 0: see attend.h
  float cap;                          // likewise 0
  Mask mask;
  float scale;  // factor of q·k
  bool vector;  // set if the heads that are read are multiples of 16 bytes and aligned to 16 bytes
  bool pairs;   // set if the heads that are written have an even number of elements and begin on even ones
  __host__ __device__ int group() const { return heads / kv_heads; }
};

// Computes out [batch, length, heads·head] and lse [batch, heads, length] from q, k and v. An f32 out (out_f32 instead
// of out) is merged with the result of other keys, out_before and lse_before, unless these are null; they may be the
// same memory.
template <class T>
struct AttentionForward {
  AttentionSizes sizes;
  Heads<const T> q, k, v;
  T* out;
  float* out_f32;
  const float* out_before;
  const float* lse_before;
  float* lse;
};

// Returns the bytes of AttentionBackward::dots, rounded up so that the scratch after it is aligned.
inline size_t attention_dots_bytes(const AttentionSizes& s) {
  return (static_cast<size_t>(s.batch * s.heads * s.length) * sizeof(float) + 255) / 256 * 256;
}

// A gradient in T, or in f32 if data_f32 is set.
template <class T>
struct GradientHeads {
  Heads<T> heads;
  float* data_f32;
};

// Computes dq, dk and dv; lse and out are those of all keys. dots [batch, heads, length] is Σ out·dout, which the
// kernels write. dq_before is added to an f32 dq unless it is null; it may be the same memory.
template <class T>
struct AttentionBackward {
  AttentionSizes sizes;
  Heads<const T> q, k, v, out, dout;
  const float* lse;
  float* dots;
  GradientHeads<T> dq, dk, dv;
  const float* dq_before;
};

// Kernels of prun, for heads of up to 256 elements: f32 in attention_f32.cu, bf16 on tensor cores in the others. They
// use no float atomics and add in a fixed order, so results are bitwise identical in every run.
std::unique_ptr<Kernel> own_attention_forward(const AttentionForward<float>& a);
std::unique_ptr<Kernel> own_attention_forward(const AttentionForward<bf16>& a);
std::unique_ptr<Kernel> own_attention_backward(const AttentionBackward<float>& a);
std::unique_ptr<Kernel> own_attention_backward(const AttentionBackward<bf16>& a);

// Allows the kernel `bytes` of dynamic shared memory, which CUDA requires above 48 KiB. At most 99 KiB, which all
// devices from sm_80 on have.
template <class... Params>
void allow_shared(void (*kernel)(Params...), int bytes) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "cudaFuncSetAttribute");
}

}  // namespace prun::cuda
