// See attention_rows.h.
#include "device/cpu/attention_rows.h"

#include <cmath>

#include "device/cpu/simd.h"
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

// In squares, so that both sides stay in cache.
template <class T>
PRUN_CLONES void pack_transposed(const T* from, int64_t stride, float* to, int64_t rows, int64_t keys, int64_t head) {
  constexpr int64_t kSquare = 16;
  for (int64_t row = 0; row < keys; row += kSquare) {
    const int64_t count = rows - row < kSquare ? rows - row : kSquare;
    for (int64_t i = 0; i < head; ++i) {
      float* y = to + i * keys + row;
      for (int64_t r = 0; r < count; ++r) y[r] = load(from[(row + r) * stride + i]);
      for (int64_t r = count < 0 ? 0 : count; r < kSquare; ++r) y[r] = 0;
    }
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

PRUN_CLONES void softmax_rows(float* scores, int64_t keys, int64_t rows, int64_t padded, int64_t seen, int64_t more,
                              float* lse, float* inverse) {
  for (int64_t r = 0; r < rows; ++r, seen += more) {
    float* s = scores + r * keys;
    float top = s[0];
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < seen; ++j) top = s[j] > top ? s[j] : top;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < seen; ++j) {
      const float p = exp_f32(s[j] - top);
      s[j] = p;
      sum += p;
    }
    for (int64_t j = seen; j < padded; ++j) s[j] = 0;
    lse[r] = top + std::log(sum);
    inverse[r] = 1.0f / sum;
  }
}

PRUN_CLONES void score_gradients(float* scores, float* dp, int64_t keys, int64_t rows, int64_t padded, int64_t seen,
                                 int64_t more, const float* lse, const float* along) {
  for (int64_t r = 0; r < rows; ++r, seen += more) {
    float *s = scores + r * keys, *d = dp + r * keys;
    const float shift = lse[r], delta = along[r];
#pragma omp simd
    for (int64_t j = 0; j < seen; ++j) {
      const float p = exp_f32(s[j] - shift);
      s[j] = p;
      d[j] = p * (d[j] - delta);
    }
    for (int64_t j = seen; j < padded; ++j) s[j] = 0, d[j] = 0;
  }
}

#define PRUN_INSTANTIATE(T)                                                                             \
  template void pack_rows(const T*, int64_t, float*, int64_t, int64_t, int64_t, float);                 \
  template void pack_transposed(const T*, int64_t, float*, int64_t, int64_t, int64_t);                  \
  template void unpack_rows(const float*, int64_t, T*, int64_t, int64_t, int64_t, float);               \
  template void unpack_scaled_rows(const float*, int64_t, const float*, T*, int64_t, int64_t, int64_t); \
  template void row_dots(const T*, const T*, int64_t, int64_t, int64_t, float*);
PRUN_INSTANTIATE(float)
PRUN_INSTANTIATE(bf16)
#undef PRUN_INSTANTIATE

}  // namespace prun::cpu
