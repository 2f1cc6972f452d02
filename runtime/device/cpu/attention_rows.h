// What attention is made of besides products of tiles: packing heads into padded f32 tiles, and softmax over strips of
// query rows, whose row r sees the first `seen` keys, `more` (0 or 1) further ones each row.
#pragma once
#include <cstdint>

namespace prun::cpu {

inline constexpr int64_t kStrip = 32;  // query rows at a time

// to[row][0..lanes) = scale · from[row · stride ..], padded with zeros. T is float or bf16.
template <class T>
void pack_rows(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, int64_t lanes, float scale);

// to[i][row] = from[row · stride + i], rows padded with zeros to `keys`.
template <class T>
void pack_transposed(const T* from, int64_t stride, float* to, int64_t rows, int64_t keys, int64_t head);

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

// Scores to unnormalized probabilities, 0 beyond what a row sees; each row's log-sum-exp and 1/sum.
void softmax_rows(float* scores, int64_t keys, int64_t rows, int64_t padded, int64_t seen, int64_t more, float* lse,
                  float* inverse);

// In place: scores become P = exp(S - lse), dp becomes dS = P·(dP - Σ out·dout); both 0 where a row may not look.
void score_gradients(float* scores, float* dp, int64_t keys, int64_t rows, int64_t padded, int64_t seen, int64_t more,
                     const float* lse, const float* along);

}  // namespace prun::cpu
