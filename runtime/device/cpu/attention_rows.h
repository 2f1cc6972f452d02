// The parts of attention besides products of tiles: packing heads into f32 tiles, and softmax over strips of queries.
//
// Surprising fact: the scores of a strip lie with its queries side by side, a row for each key. So softmax runs down
// the columns of whole vectors, with no sum across lanes and no remainders, and keys need no transpose.
#pragma once
#include <cstdint>

namespace prun::cpu {

// Queries at a time: two of the longest vectors, so that k and v are read half as often as for one.
inline constexpr int64_t kStrip = 32;

// to[row][0..lanes) = scale · from[row · stride ..], padded with zeros. T is float or bf16.
template <class T>
void pack_rows(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, int64_t lanes, float scale);

// to[i][row] = scale · from[row · stride + i] for the rows of a strip; lanes without a row are 0.
template <class T>
void pack_lanes(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, float scale);

// to[row · stride ..] = scale · from[row][0..head).
template <class T>
void unpack_rows(const float* from, int64_t lanes, T* to, int64_t stride, int64_t rows, int64_t head, float scale);

// to[r · stride ..] = factor[r] · from[r][0..head).
template <class T>
void unpack_scaled_rows(const float* from, int64_t lanes, const float* factor, T* to, int64_t stride, int64_t rows,
                        int64_t head);

// dots[r] = Σ a·b over row r.
template <class T>
void row_dots(const T* a, const T* b, int64_t stride, int64_t rows, int64_t head, float* dots);

// Which keys the queries of a strip see: query r the first `seen` + r · `more`.
struct Sight {
  int64_t seen, more;
  int64_t keys(int64_t rows) const { return seen + (rows - 1) * more; }  // of all its rows together
};

// The products of a strip with rows of `lanes` floats, k or v. Its first half sees `fewer` keys, and products leave out
// what it does not see.
struct Strip {
  int64_t rows, keys, fewer;
  Strip(const Sight& sight, int64_t queries)
      : rows(queries), keys(sight.keys(queries)), fewer(sight.keys(queries < kStrip / 2 ? queries : kStrip / 2)) {}
  // scores[keys][kStrip] = k · q, q[head][kStrip]; 0 where left out.
  void score(const float* k, int64_t head, int64_t lanes, const float* q, float* scores) const;
  // to[rows][lanes] = weightsᵀ · values, weights[keys][kStrip], values[keys][lanes].
  void gather(const float* weights, const float* values, int64_t lanes, float* to) const;
  // to[keys][lanes] += weights · from, from[rows][lanes].
  void scatter(const float* weights, const float* from, int64_t lanes, float* to) const;
};

// Scores [keys][kStrip] to unnormalized probabilities, 0 for keys that a query does not see; each query's log-sum-exp
// and 1/sum, for kStrip of them.
void softmax_lanes(float* scores, int64_t keys, const Sight& sight, float* lse, float* inverse);

// In place: scores become P = exp(S - lse), dp becomes dS = P·(dP - Σ out·dout); both 0 where a query does not look.
void score_gradients(float* scores, float* dp, int64_t keys, const Sight& sight, const float* lse, const float* along);

}  // namespace prun::cpu
