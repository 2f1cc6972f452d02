// See attention_rows.h.
#include "device/cpu/attention_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/simd.h"
#include "device/cpu/tile.h"
#include "device/cpu/turn.h"
#include "device/cpu/vector_math.h"

namespace prun::cpu {

template <class T>
PRUN_CLONES void pack_rows(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, int64_t lanes,
                           float scale) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = from + row * stride;
    float* y = to + row * lanes;
#pragma omp simd
    for (int64_t i = 0; i < head; ++i) y[i] = scale * load(x[i]);
    for (int64_t i = head; i < lanes; ++i) y[i] = 0;
  }
}

template <class T>
PRUN_CLONES void pack_lanes(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, float scale) {
  const int64_t squares = rows == kStrip ? head / 8 * 8 : 0;
  for (int64_t i = 0; i < squares; i += 8) {
    for (int64_t r = 0; r < kStrip; r += 8) {
      Eight square[8];
      for (int64_t j = 0; j < 8; ++j) load_eight(from + (r + j) * stride + i, square[j]);
      turn(square);
      for (int64_t j = 0; j < 8; ++j) *reinterpret_cast<Eight*>(to + (i + j) * kStrip + r) = scale * square[j];
    }
  }
  for (int64_t i = squares; i < head; ++i) {
    for (int64_t r = 0; r < rows; ++r) to[i * kStrip + r] = scale * load(from[r * stride + i]);
    for (int64_t r = rows; r < kStrip; ++r) to[i * kStrip + r] = 0;
  }
}

template <class T>
PRUN_CLONES void unpack_rows(const float* from, int64_t lanes, T* to, int64_t stride, int64_t rows, int64_t head,
                             float scale) {
  for (int64_t row = 0; row < rows; ++row) {
#pragma omp simd
    for (int64_t i = 0; i < head; ++i) store(to[row * stride + i], scale * from[row * lanes + i]);
  }
}

template <class T>
PRUN_CLONES void unpack_scaled_rows(const float* from, int64_t lanes, const float* factor, T* to, int64_t stride,
                                    int64_t rows, int64_t head) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < head; ++i) store(to[r * stride + i], factor[r] * from[r * lanes + i]);
  }
}

template <class T>
PRUN_CLONES void row_dots(const T* a, const T* b, int64_t stride, int64_t rows, int64_t head, float* dots) {
  for (int64_t r = 0; r < rows; ++r) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < head; ++i) sum += load(a[r * stride + i]) * load(b[r * stride + i]);
    dots[r] = sum;
  }
}

namespace {

// From the first key on that some query does not see.
PRUN_INLINE void hide(float* scores, int64_t keys, const Sight& sight) {
  for (int64_t j = sight.seen; j < keys; ++j) {
#pragma omp simd
    for (int64_t r = 0; r < kStrip; ++r)
      if (j >= sight.seen + r * sight.more) scores[j * kStrip + r] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void Strip::score(const float* k, int64_t head, int64_t lanes, const float* q, float* scores) const {
  constexpr int64_t kHalf = kStrip / 2;
  tile_product({fewer, kStrip, head, k, lanes, 1, q, kStrip, scores, kStrip, false});
  if (fewer == keys) return;
  float* rest = scores + fewer * kStrip;
  for (int64_t j = 0; j < keys - fewer; ++j) std::fill_n(rest + j * kStrip, kHalf, 0.0f);
  tile_product(
      {keys - fewer, kHalf, head, k + fewer * lanes, lanes, 1, q + kHalf, kStrip, rest + kHalf, kStrip, false});
}

void Strip::gather(const float* weights, const float* values, int64_t lanes, float* to) const {
  const int64_t half = fewer == keys ? rows : kStrip / 2;
  tile_product({half, lanes, fewer, weights, 1, kStrip, values, lanes, to, lanes, false});
  if (half < rows)
    tile_product({rows - half, lanes, keys, weights + half, 1, kStrip, values, lanes, to + half * lanes, lanes, false});
}

void Strip::scatter(const float* weights, const float* from, int64_t lanes, float* to) const {
  constexpr int64_t kHalf = kStrip / 2;
  tile_product({fewer, lanes, rows, weights, kStrip, 1, from, lanes, to, lanes, true});
  if (fewer < keys)
    tile_product({keys - fewer, lanes, rows - kHalf, weights + fewer * kStrip + kHalf, kStrip, 1, from + kHalf * lanes,
                  lanes, to + fewer * lanes, lanes, true});
}

PRUN_CLONES void softmax_lanes(float* scores, int64_t keys, const Sight& sight, float* lse, float* inverse) {
  hide(scores, keys, sight);
  float top[kStrip], sum[kStrip] = {};
  for (int64_t r = 0; r < kStrip; ++r) top[r] = scores[r];
  for (int64_t j = 1; j < keys; ++j) {
#pragma omp simd
    for (int64_t r = 0; r < kStrip; ++r) top[r] = scores[j * kStrip + r] > top[r] ? scores[j * kStrip + r] : top[r];
  }
  for (int64_t j = 0; j < keys; ++j) {
#pragma omp simd
    for (int64_t r = 0; r < kStrip; ++r) {
      const float p = exp_or_zero_f32(scores[j * kStrip + r] - top[r]);
      scores[j * kStrip + r] = p;
      sum[r] += p;
    }
  }
  for (int64_t r = 0; r < kStrip; ++r) {
    lse[r] = top[r] + std::log(sum[r]);
    inverse[r] = 1.0f / sum[r];
  }
}

PRUN_CLONES void score_gradients(float* scores, float* dp, int64_t keys, const Sight& sight, const float* lse,
                                 const float* along) {
  hide(scores, keys, sight);
  for (int64_t j = 0; j < keys; ++j) {
    float *s = scores + j * kStrip, *d = dp + j * kStrip;
#pragma omp simd
    for (int64_t r = 0; r < kStrip; ++r) {
      const float p = exp_or_zero_f32(s[r] - lse[r]);
      s[r] = p;
      d[r] = p * (d[r] - along[r]);
    }
  }
}

#define PRUN_INSTANTIATE(T)                                                                             \
  template void pack_rows(const T*, int64_t, float*, int64_t, int64_t, int64_t, float);                 \
  template void pack_lanes(const T*, int64_t, float*, int64_t, int64_t, float);                         \
  template void unpack_rows(const float*, int64_t, T*, int64_t, int64_t, int64_t, float);               \
  template void unpack_scaled_rows(const float*, int64_t, const float*, T*, int64_t, int64_t, int64_t); \
  template void row_dots(const T*, const T*, int64_t, int64_t, int64_t, float*);
PRUN_INSTANTIATE(float)
PRUN_INSTANTIATE(bf16)
#undef PRUN_INSTANTIATE

}  // namespace prun::cpu
