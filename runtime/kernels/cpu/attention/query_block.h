// The parts of attention on f32: packing heads, products of strips of queries with keys and values, and softmax.
//
// Surprising fact: the scores of a strip lie with its queries side by side, a row for each key. So softmax runs down
// the columns of whole vectors, with no sum across lanes and no remainders, and keys need no transpose.
#pragma once
#include <algorithm>
#include <cstdint>

#include "device/bf16.h"
#include "kernels/cpu/prefetch.h"

namespace prun::cpu {

// Queries at a time: two of the longest vectors, so that k and v are read half as often as for one.
inline constexpr int64_t kStrip = 32;
inline constexpr float kLog2E = 1.44269504f;

// Rows of a head as products read them, in place or packed.
struct FloatRows {
  const float* data;
  int64_t stride;
  FloatRows from(int64_t row) const { return {data + row * stride, stride}; }
};

// to[row][0..lanes) = from[row · stride ..], padded with zeros. T is float or bf16.
template <class T>
void pack_rows(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, int64_t lanes);

// to[i][row] = scale · from[row · stride + i] for the rows of a strip; lanes without a row are 0.
template <class T>
void pack_lanes(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, float scale);

// The same of pairs of bf16, as elements of four bytes: `head`, an even number, counts numbers.
void pack_pairs(const bf16* from, int64_t stride, float* to, int64_t rows, int64_t head);
inline FloatRows pairs_of(const bf16* from, int64_t stride) {
  return {reinterpret_cast<const float*>(from), stride / 2};
}

// to[row · stride ..] = from[row][0..head).
template <class T>
void unpack_rows(const float* from, int64_t lanes, T* to, int64_t stride, int64_t rows, int64_t head);

// dots[r] = scale · Σ a·b over row r, of kStrip rows at most; 0 behind them.
template <class T>
void row_dots(const T* a, const T* b, int64_t stride, int64_t rows, int64_t head, float scale, float* dots);

// Which keys the queries of a strip see: query r the first `seen` + r · `more`.
struct Sight {
  int64_t seen, more;
  int64_t keys(int64_t rows) const { return seen + (rows - 1) * more; }  // of all its rows together
};

// The products of queries with keys and values. A matrix of weights, of scores or what is made of them, has a row for
// each key, `ld` floats apart, and the queries side by side. What queries do not see of the keys that they begin to see
// one by one is 0 there, or not read.
struct Strip {
  int64_t rows, keys, before;  // queries; keys that the last one sees; those before the diagonal, which all see
  Strip(const Sight& sight, int64_t queries)
      : rows(queries), keys(sight.keys(queries)), before(sight.more == 0 ? keys : sight.seen - 1) {}
  // scores[key] = k[key] · q, q[head][kStrip]: of kStrip queries at most.
  void score(const FloatRows& k, int64_t head, const float* q, float* scores, int64_t ld, Prefetcher& ahead) const;
  // The same of pairs, which are exact products of bf16 with sums in f32. Takes AVX512_BF16.
  void score_pairs(const FloatRows& k, int64_t head, const float* q, float* scores, int64_t ld,
                   Prefetcher& ahead) const;
  // to[row · stride ..] = factors[row] · Σ weights[key][row] · values[key]: of kStrip queries at most. No factors: 1.
  void gather(const float* weights, int64_t ld, const FloatRows& values, int64_t lanes, const float* factors, float* to,
              int64_t stride, Prefetcher& ahead) const;
  // to[key · stride ..] = Σ weights[key][row] · from[row], which of the first `added` keys is added to what is there.
  // Those are none, all, or a multiple of kStrip.
  void scatter(const float* weights, int64_t ld, const FloatRows& from, int64_t lanes, float* to, int64_t stride,
               int64_t added, Prefetcher& ahead) const;
};

// Scores of kStrip queries, in powers of two times `factor`, to unnormalized probabilities, 0 for keys that a query
// does not see; each query's log-sum-exp and 1/sum.
void softmax_lanes(float* scores, int64_t ld, const Strip& strip, float factor, float* lse, float* inverse);

// In place: scores S become P = 2^(factor · S - shift), dp becomes dS = P·(scale · dP - along), both 0 where a query
// does not look.
void score_gradients(float* scores, float* dp, int64_t ld, const Strip& strip, float factor, float scale,
                     const float* shift, const float* along);

}  // namespace prun::cpu
