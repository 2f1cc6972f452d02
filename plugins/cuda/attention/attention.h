// What the kernels of attention compute, for the ops attention and attention_block alike: where heads lie in memory,
// and which keys a query sees.
//
// Surprising fact: on whatever rank, hop and chunk, a query sees a prefix of the keys that are here, and a later query
// never a shorter one. So a mask is one number for each query, and which tiles are empty, full or cut follows from
// their ends.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "cuda/kernels/op.h"

namespace prun::cuda {

// Heads of one sort in a tensor [batch, length, row]: `data` is the first one's, `row` and `sample` count elements.
template <class T>
struct Heads {
  T* data;
  int64_t row, sample;
  __host__ __device__ T* head(int64_t b, int64_t h, int size) const { return data + b * sample + h * size; }
};

// How many keys query t sees. The rank's tokens are one chunk or two of `chunk` each.
struct Sight {
  int chunk;
  int seen[2], more[2];  // the first query of a chunk, and how many more each next one sees
  __host__ __device__ int keys(int t) const {
    return t < chunk ? seen[0] + t * more[0] : seen[1] + (t - chunk) * more[1];
  }
};

struct AttentionSizes {
  int64_t batch;
  int length, heads, kv_heads, head;  // of a head, `head` elements: at most 256
  Sight sight;
  float scale;  // of q·k
  bool vector;  // heads that are read have multiples of 16 bytes, and begin on such
  bool pairs;   // heads that are written have an even number of elements, and begin on multiples of two
  __host__ __device__ int group() const { return heads / kv_heads; }
};

// out [batch, length, heads·head] and lse [batch, heads, length] of q and k, v. With f32 out (out_f32 instead of out)
// they are merged with those of other keys, out_before and lse_before, where these are not null; they may be the same
// memory.
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

// The bytes of AttentionBackward::dots, rounded up to a boundary for what follows it in scratch.
inline size_t attention_dots_bytes(const AttentionSizes& s) {
  return (static_cast<size_t>(s.batch * s.heads * s.length) * sizeof(float) + 255) / 256 * 256;
}

// A gradient in T, or in f32 where data_f32 is set.
template <class T>
struct GradientHeads {
  Heads<T> heads;
  float* data_f32;
};

// dq, dk and dv; lse and out are those of all keys. dots [batch, heads, length] is Σ out·dout, which the kernels write.
// dq_before is added to an f32 dq, where it is not null; it may be the same memory.
template <class T>
struct AttentionBackward {
  AttentionSizes sizes;
  Heads<const T> q, k, v, out, dout;
  const float* lse;
  float* dots;
  GradientHeads<T> dq, dk, dv;
  const float* dq_before;
};

// Kernels of ours, for heads of up to 256 elements: f32 in attention_f32.cu, bf16 on tensor cores in the others. No
// float is added atomically and all orders are fixed, so the same inputs give the same bits.
std::unique_ptr<Kernel> own_attention_forward(const AttentionForward<float>& a);
std::unique_ptr<Kernel> own_attention_forward(const AttentionForward<bf16>& a);
std::unique_ptr<Kernel> own_attention_backward(const AttentionBackward<float>& a);
std::unique_ptr<Kernel> own_attention_backward(const AttentionBackward<bf16>& a);

// The kernel may have so many bytes of shared memory: above 48 KiB a device wants to be asked. At most 99 KiB, which
// all devices from sm_80 on have.
template <class... Params>
void allow_shared(void (*kernel)(Params...), int bytes) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "cudaFuncSetAttribute");
}

}  // namespace prun::cuda
