// FlashAttention (Dao et al., 2022) on one block of queries, in f32: packing, the GEMMs with keys and values, softmax,
// and the gradients of scores.
//
//      forward                                      backward; dK and dV accumulate over query blocks
//      queries ─pack─► Qᵀ ┐                         Qᵀ, K    ─GEMM─► S  ┐
//      keys    ─────────── ┴─GEMM─► S ─softmax─► P  dOᵀ, V   ─GEMM─► dP ┴─► P, dS
//      values  ─────────────────── GEMM ─► O = P·V  dQ = dS·K    dK += dSᵀ·Q    dV += Pᵀ·dO
//
// Surprising fact: scores are stored transposed, [key][query]. So softmax reduces down the columns of whole vectors,
// without a reduction across lanes and without remainders, and keys need no transpose.
#pragma once
#include <algorithm>
#include <cstdint>

#include "device/bf16.h"
#include "kernels/cpu/prefetch.h"

namespace prun::cpu {

// Queries per block: two of the longest vectors, so that k and v are read half as often as with one.
inline constexpr int64_t kQueryBlock = 32;
inline constexpr float kLog2E = 1.44269504f;

// Rows of a head, `stride` elements apart.
template <class T>
struct HeadRows {
  const T* data;
  int64_t stride;
  HeadRows from(int64_t row) const { return {data + row * stride, stride}; }
};
using FloatRows = HeadRows<float>;

// The keys that a range of queries attends to: row r attends to the first `attended` + r · `step`. `step` is 1 on the
// diagonal of a causal mask, otherwise 0.
struct Mask {
  int64_t attended, step;
  int64_t keys(int64_t rows) const { return attended + (rows - 1) * step; }  // keys of the last row
  Mask from(int64_t row) const { return {attended + row * step, step}; }
};

// Copies rows to to[row][0..lanes), padded with zeros. T is float or bf16.
template <class T>
void pack_rows(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, int64_t lanes);

// Rounds to[row][0..head) to rows that are `stride` apart.
template <class T>
void unpack_rows(const float* from, int64_t lanes, T* to, int64_t stride, int64_t rows, int64_t head);

// Transposes the rows of a query block: to[i][row] = scale · from[row · stride + i]; columns without a row are 0.
template <class T>
void pack_transposed(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, float scale);

// The GEMMs of a query block with keys and values. A matrix of scores or weights has a row for each key, `ld` floats
// apart, and a column for each query. Masked elements on the diagonal are 0 or not read.
struct QueryBlock {
  int64_t rows, keys, before;  // queries; keys that the last one attends to; keys before the diagonal
  QueryBlock(const Mask& mask, int64_t queries)
      : rows(queries), keys(mask.keys(queries)), before(mask.step == 0 ? keys : mask.attended - 1) {}
  // Computes S = K·Qᵀ from queries[head][kQueryBlock], for at most kQueryBlock queries.
  void score(const FloatRows& k, int64_t head, const float* queries, float* scores, int64_t ld,
             Prefetcher& prefetch) const;
  // Computes the same scores from pairs of bf16, whose dot products have f32 accumulators. Needs AVX512_BF16.
  void score_pairs(const FloatRows& k, int64_t head, const float* queries, float* scores, int64_t ld,
                   Prefetcher& prefetch) const;
  // Computes to[row · stride ..] = factors[row] · Σ weights[key][row] · values[key], for at most kQueryBlock queries: O
  // = P·V, or dQ = dS·K. Without factors they are 1.
  void reduce_over_keys(const float* weights, int64_t ld, const FloatRows& values, int64_t lanes, const float* factors,
                        float* to, int64_t stride, Prefetcher& prefetch) const;
  // Computes to[key · stride ..] = Σ weights[key][row] · from[row]: dV += Pᵀ·dO, or dK += dSᵀ·Q. Accumulates for the
  // first `added` keys (none, all, or a multiple of kQueryBlock), and overwrites the others.
  void reduce_over_queries(const float* weights, int64_t ld, const FloatRows& from, int64_t lanes, float* to,
                           int64_t stride, int64_t added, Prefetcher& prefetch) const;
};

// The computation of a head's scores: by FMAs of f32 rows, or by dot products of bf16 pairs if these are stored. f32
// queries are scaled when they are packed; pairs are not, since that would round, so their scores are scaled instead.
struct ScoreKernel {
  int64_t head;
  float scale;
  bool pairs = false;

  // Returns keys, or values, in the form that score() reads: the pairs themselves, or `packed`.
  template <class T>
  FloatRows operand(const HeadRows<T>& rows, const FloatRows& packed) const {
    if constexpr (sizeof(T) == sizeof(bf16))
      if (pairs) return {reinterpret_cast<const float*>(rows.data), rows.stride / 2};
    return packed;
  }
};

// Computes a query block's unnormalized probabilities, 2^(S - max), [key][kQueryBlock], and for each query the
// log-sum-exp and 1/sum. `queries`: scratch of head · kQueryBlock floats.
template <class T>
void block_probabilities(const ScoreKernel& kernel, const QueryBlock& block, const HeadRows<T>& q, const FloatRows& k,
                         float* queries, float* scores, float* lse, float* inverse, Prefetcher& prefetch);

// Computes P = exp(S - lse) and dS = scale · P·(dP - Σ out·dout), [key][ld], of a query block: the gradient of q·k.
// `queries` and `gradients`: scratch of head · kQueryBlock floats each.
template <class T>
void block_score_gradients(const ScoreKernel& kernel, const QueryBlock& block, const HeadRows<T>& q,
                           const HeadRows<T>& out, const HeadRows<T>& dout, const float* lse, const FloatRows& k,
                           const FloatRows& v, float* queries, float* gradients, float* p, float* ds, int64_t ld,
                           Prefetcher& prefetch);

}  // namespace prun::cpu
