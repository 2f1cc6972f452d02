// See query_block.h.
#include "kernels/cpu/attention/query_block.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {

template <class T>
void pack_rows(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, int64_t lanes_of_head) {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    const T* x = from;
    float* y = to;
    for (int64_t row = 0; row < rows; ++row, x += stride, y += lanes_of_head) {
      for_lanes<lanes>(head, [&](auto at) PRUN_INLINED { at.store(y, at.load(x)); });
      for (int64_t i = head; i < lanes_of_head; ++i) y[i] = 0;
    }
  });
}

namespace {

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));

// Two numbers of bf16, which are moved and never computed with.
struct __attribute__((may_alias)) TwoHalves {
  uint32_t bits;
};
using cpu::load;
PRUN_INLINE float load(const TwoHalves& x) { return __builtin_bit_cast(float, x.bits); }

// Whether what is turned is a number, which may be multiplied meanwhile.
template <class T>
inline constexpr bool kScaled = !std::is_same_v<T, TwoHalves>;

template <class T>
PRUN_INLINE Four load_four(const T* from) {
  return Four{load(from[0]), load(from[1]), load(from[2]), load(from[3])};
}

// 8 rows of 4 elements as 4 rows of 8. Rows r and r + 4 come as halves of one vector, which takes no instructions but
// the loads.
template <class T>
PRUN_INLINE void turn_four(const T* from, int64_t stride, float* to, float scale) {
  Eight x[4], low[2], high[2];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r)
    x[r] = __builtin_shufflevector(load_four(from + r * stride), load_four(from + (r + 4) * stride), 0, 1, 2, 3, 4, 5,
                                   6, 7);
#pragma GCC unroll 2
  for (int r = 0; r < 2; ++r) {
    low[r] = __builtin_shufflevector(x[2 * r], x[2 * r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    high[r] = __builtin_shufflevector(x[2 * r], x[2 * r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  const auto put = [&](int64_t row, const Eight& v) PRUN_INLINED {
    Eight& at = *reinterpret_cast<Eight*>(to + row * kStrip);
    if constexpr (kScaled<T>)
      at = scale * v;
    else
      at = v;
  };
  put(0, __builtin_shufflevector(low[0], low[1], 0, 1, 8, 9, 4, 5, 12, 13));
  put(1, __builtin_shufflevector(low[0], low[1], 2, 3, 10, 11, 6, 7, 14, 15));
  put(2, __builtin_shufflevector(high[0], high[1], 0, 1, 8, 9, 4, 5, 12, 13));
  put(3, __builtin_shufflevector(high[0], high[1], 2, 3, 10, 11, 6, 7, 14, 15));
}

#if defined(__x86_64__)

// 16 rows of 4 elements as 4 rows of 16. Rows r, r + 4, r + 8 and r + 12 come as quarters of one vector.
template <bool scaled>
PRUN_V4 inline void turn_four_of_16(const float* from, int64_t stride, float* to, float scale) {
  __m512 x[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const float* row = from + r * stride;
    x[r] = _mm512_castps128_ps512(_mm_loadu_ps(row));
    x[r] = _mm512_insertf32x4(x[r], _mm_loadu_ps(row + 4 * stride), 1);
    x[r] = _mm512_insertf32x4(x[r], _mm_loadu_ps(row + 8 * stride), 2);
    x[r] = _mm512_insertf32x4(x[r], _mm_loadu_ps(row + 12 * stride), 3);
  }
  const __m512d low[] = {(__m512d)_mm512_unpacklo_ps(x[0], x[1]), (__m512d)_mm512_unpacklo_ps(x[2], x[3])};
  const __m512d high[] = {(__m512d)_mm512_unpackhi_ps(x[0], x[1]), (__m512d)_mm512_unpackhi_ps(x[2], x[3])};
  const __m512d made[] = {_mm512_unpacklo_pd(low[0], low[1]), _mm512_unpackhi_pd(low[0], low[1]),
                          _mm512_unpacklo_pd(high[0], high[1]), _mm512_unpackhi_pd(high[0], high[1])};
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r)
    _mm512_storeu_ps(to + r * kStrip, scaled ? _mm512_mul_ps((__m512)made[r], _mm512_set1_ps(scale)) : (__m512)made[r]);
}
template <bool scaled>
PRUN_V4 void turn_strip(const float* from, int64_t stride, float* to, int64_t head, float scale) {
  for (int64_t r = 0; r < kStrip; r += 16)
    for (int64_t i = 0; i < head; i += 4)
      turn_four_of_16<scaled>(from + r * stride + i, stride, to + i * kStrip + r, scale);
}
#endif

}  // namespace

template <class T>
PRUN_CLONES void pack_lanes(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, float scale) {
#if defined(__x86_64__)
  if constexpr (sizeof(T) == sizeof(float))
    if (rows == kStrip && head % 4 == 0 && instruction_set() == InstructionSet::avx512)
      return turn_strip<kScaled<T>>(reinterpret_cast<const float*>(from), stride, to, head, scale);
#endif
  const int64_t turned = rows == kStrip ? head / 4 * 4 : 0;
  for (int64_t r = 0; turned > 0 && r < kStrip; r += 8)
    for (int64_t i = 0; i < turned; i += 4) turn_four(from + r * stride + i, stride, to + i * kStrip + r, scale);
  for (int64_t i = turned; i < head; ++i) {
    for (int64_t r = 0; r < rows; ++r) {
      const float x = load(from[r * stride + i]);
      to[i * kStrip + r] = kScaled<T> ? scale * x : x;
    }
    for (int64_t r = rows; r < kStrip; ++r) to[i * kStrip + r] = 0;
  }
}

void pack_pairs(const bf16* from, int64_t stride, float* to, int64_t rows, int64_t head) {
  pack_lanes(reinterpret_cast<const TwoHalves*>(from), stride / 2, to, rows, head / 2, 1.0f);
}

template <class T>
void unpack_rows(const float* from, int64_t lanes_of_head, T* to, int64_t stride, int64_t rows, int64_t head) {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    const float* x = from;
    T* y = to;
    for (int64_t row = 0; row < rows; ++row, x += lanes_of_head, y += stride)
      for_lanes<lanes>(head, [&](auto at) PRUN_INLINED { at.store(y, at.load(x)); });
  });
}

template <class T>
void row_dots(const T* a, const T* b, int64_t stride, int64_t rows, int64_t head, float scale, float* dots) {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    if constexpr (lanes < 16) {
      const T *x = a, *y = b;
      for (int64_t r = 0; r < rows; ++r, x += stride, y += stride)
        dots[r] = scale * sum_lanes<lanes>(head, [&](auto at) PRUN_INLINED { return at.load(x) * at.load(y); });
    } else {  // sums across so many elements take longer than to turn them
      alignas(64) float parts[kStrip * lanes], turned[lanes * kStrip];
      for (int64_t r = 0; r < rows; ++r) {
        Floats<lanes> sum{};
        for_lanes<lanes>(head, [&](auto at) PRUN_INLINED { sum += at.load(a + r * stride) * at.load(b + r * stride); });
        store_lanes<lanes>(parts + r * lanes, sum);
      }
      std::fill(parts + rows * lanes, parts + kStrip * lanes, 0.0f);
      pack_lanes(parts, lanes, turned, kStrip, lanes, scale);
      for (int64_t r = 0; r < kStrip; r += lanes) {
        Floats<lanes> sum{};
        for (int i = 0; i < lanes; ++i) sum += load_lanes<lanes>(turned + i * kStrip + r);
        store_lanes<lanes>(dots + r, sum);
      }
    }
  });
}

namespace {

// A vector of queries from `first` on, of which those from `seeing` on count.
template <int lanes>
PRUN_INLINE Floats<lanes> only_from(int64_t seeing, int64_t first, const Floats<lanes>& v, float otherwise) {
  static constexpr int32_t kPlaces[kStrip / 2] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  typename BitsOf<Floats<lanes>>::Signed place;
  std::memcpy(&place, kPlaces, sizeof place);
  return place >= static_cast<int32_t>(seeing - first) ? v : Floats<lanes>{} + otherwise;
}

// power_of_two(), in instructions of AVX-512, which leave 10 of 13 for a probability.
template <int lanes>
PRUN_INLINE Floats<lanes> weight_of(const Floats<lanes>& t) {
  constexpr float kLeast = -100.0f;  // of power_of_two(), and for the same reason
  if constexpr (kScales<Floats<lanes>>) return scaled_exp2_f32(at_least(t, kLeast));
  return power_of_two(t);
}

// f.operator()<first vector, end of those masked>(key) for the keys of a strip: on the diagonal from the vectors on
// that see them.
template <int lanes, class F>
PRUN_INLINE void each_key(const Strip& strip, const F& f) {
  constexpr int64_t kHalf = kStrip / 2;
  int64_t key = 0;
  for (; key < strip.before; ++key) f.template operator()<0, 0>(key);
  for (const int64_t end = std::min(strip.keys, strip.before + kHalf); key < end; ++key)
    f.template operator()<0, kHalf / lanes>(key);
  for (; key < strip.keys; ++key) f.template operator()<kHalf / lanes, kStrip / lanes>(key);
}

}  // namespace

void softmax_lanes(float* scores, int64_t ld, const Strip& strip, float factor, float* lse, float* inverse) {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    using V = Floats<lanes>;
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    constexpr int kVectors = kStrip / lanes;
    V top[kVectors], sum[kVectors];
    for (int v = 0; v < kVectors; ++v) top[v] = V{} + kNever, sum[v] = V{};
    each_key<lanes>(strip, [&]<int from, int masked>(int64_t key) PRUN_INLINED {
#pragma GCC unroll 8
      for (int v = from; v < kVectors; ++v) {
        const V s = load_lanes<lanes>(scores + key * ld + v * lanes);
        top[v] = kLarger(top[v], v < masked ? only_from<lanes>(key - strip.before, v * lanes, s, kNever) : s);
      }
    });
    for (int v = 0; v < kVectors; ++v) top[v] *= factor;
    each_key<lanes>(strip, [&]<int from, int masked>(int64_t key) PRUN_INLINED {
#pragma GCC unroll 8
      for (int v = from; v < kVectors; ++v) {
        float* s = scores + key * ld + v * lanes;
        V p = weight_of<lanes>(factor * load_lanes<lanes>(s) - top[v]);
        if (v < masked) p = only_from<lanes>(key - strip.before, v * lanes, p, 0.0f);
        sum[v] += p;
        store_lanes<lanes>(s, p);
      }
    });
    for (int v = 0; v < kVectors; ++v) {
      store_lanes<lanes>(lse + v * lanes, V((top[v] + log2_f32(sum[v])) * 0.693147181f));
      store_lanes<lanes>(inverse + v * lanes, V(1.0f / sum[v]));
    }
  });
}

void score_gradients(float* scores, float* dp, int64_t ld, const Strip& strip, float factor, float scale,
                     const float* shift, const float* along) {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    using V = Floats<lanes>;
    constexpr float kMost = 127.0f;  // more than 0 comes of no softmax
    constexpr int kVectors = kStrip / lanes;
    V less[kVectors], mean[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      less[v] = load_lanes<lanes>(shift + v * lanes);
      mean[v] = load_lanes<lanes>(along + v * lanes);
    }
    each_key<lanes>(strip, [&]<int from, int masked>(int64_t key) PRUN_INLINED {
#pragma GCC unroll 8
      for (int v = from; v < kVectors; ++v) {
        float *s = scores + key * ld + v * lanes, *d = dp + key * ld + v * lanes;
        V p = weight_of<lanes>(at_most(V(factor * load_lanes<lanes>(s) - less[v]), kMost));
        V ds = p * (scale * load_lanes<lanes>(d) - mean[v]);
        if (v < masked) {
          p = only_from<lanes>(key - strip.before, v * lanes, p, 0.0f);
          ds = only_from<lanes>(key - strip.before, v * lanes, ds, 0.0f);
        }
        store_lanes<lanes>(s, p);
        store_lanes<lanes>(d, ds);
      }
    });
  });
}

#define PRUN_INSTANTIATE(T)                                                        \
  template void pack_rows(const T*, int64_t, float*, int64_t, int64_t, int64_t);   \
  template void pack_lanes(const T*, int64_t, float*, int64_t, int64_t, float);    \
  template void unpack_rows(const float*, int64_t, T*, int64_t, int64_t, int64_t); \
  template void row_dots(const T*, const T*, int64_t, int64_t, int64_t, float, float*);
PRUN_INSTANTIATE(float)
PRUN_INSTANTIATE(bf16)
#undef PRUN_INSTANTIATE

}  // namespace prun::cpu
