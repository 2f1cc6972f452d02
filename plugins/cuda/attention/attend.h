// Operands of the kernels of the op attend: queries, keys and values in tensors of their own, and the rules by which a
// query sees keys.
//
// Surprising fact: tiles are skipped by the range of keys that the rules leave to a query and by a mask of keys, and
// never by a mask with a row for each query, so that a block does not read that one before it has scores to hide.
#pragma once
#include "attention.h"
#include "prun/sdk/key_rules.h"

namespace prun::cuda {

// The keys [first, end) of a query; 0, 0: none.
struct KeySpan {
  int first, end;
  __host__ __device__ bool has(int key) const { return key >= first && key < end; }
};

struct AttendSizes {
  int64_t batch;
  int queries, keys;                       // of a sample
  int heads, kv_heads, group, first_head;  // group: heads of queries, of all ranks, that share a head of keys
  int head, value;                         // elements of a head of q and k, and of v; at most 256
  float scale, cap;                        // a score is scale·q·k, or cap·tanh(scale·q·k / cap); cap 0: none
  sdk::KeyRules rules;
  const int32_t* spans;       // [batch, queries, 2], or null
  const void* mask;           // [batch, mask_rows, keys], or null
  int mask_dtype, mask_rows;  // one row, or one for each query
  bool vector;                // set if the heads that are read are multiples of 16 bytes and aligned to 16 bytes
  bool pairs;  // set if the heads that are written have an even number of elements and begin on even ones

  __host__ __device__ int kv_head(int64_t h) const { return static_cast<int>(first_head + h) / group; }
  // Returns the rank's first head of queries that uses this head of keys, or a later one.
  __host__ __device__ int first_user(int kv) const {
    const int at = kv * group - first_head;
    return at < 0 ? 0 : at < heads ? at : heads;
  }
};

// Computes out [batch, queries, heads·value] and lse [batch, heads, queries]; both are 0 for queries without keys.
template <class T>
struct AttendForward {
  AttendSizes sizes;
  Heads<const T> q, k, v;
  T* out;
  float* lse;
};

// Queries in an entry of AttendBackward::tiles, of which a tile of queries in any kernel is a multiple.
inline constexpr int kSpanTile = 16;

// Computes dq, dk and dv. The kernels write dots [batch, heads, queries], Σ out·dout, and tiles, the keys that any of
// 16 queries sees, [batch, queries / 16].
template <class T>
struct AttendBackward {
  AttendSizes sizes;
  Heads<const T> q, k, v, out, dout;
  const float* lse;
  float* dots;
  KeySpan* tiles;
  Heads<T> dq, dk, dv;
};

inline int span_tiles(const AttendSizes& s) { return (s.queries + kSpanTile - 1) / kSpanTile; }
inline size_t attend_dots_bytes(const AttendSizes& s) {
  return (static_cast<size_t>(s.batch * s.heads * s.queries) * sizeof(float) + 255) / 256 * 256;
}
inline size_t attend_backward_bytes(const AttendSizes& s) {
  return attend_dots_bytes(s) + static_cast<size_t>(s.batch) * span_tiles(s) * sizeof(KeySpan);
}

// f32 on CUDA cores (attend_f32.cu), bf16 on tensor cores (attend_forward.cu, attend_backward.cu). They use no float
// atomics and add in a fixed order, so results are bitwise identical in every run.
std::unique_ptr<Kernel> attend_forward(const AttendForward<float>& a);
std::unique_ptr<Kernel> attend_forward(const AttendForward<bf16>& a);
std::unique_ptr<Kernel> attend_backward(const AttendBackward<float>& a);
std::unique_ptr<Kernel> attend_backward(const AttendBackward<bf16>& a);

}  // namespace prun::cuda
