// See query_block.h. A transpose handles 4 columns of 8 or 16 rows at a time: it loads rows that are 4 apart into parts
// of one vector, so that only two shuffles follow.
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

// A pair of bf16, which is moved but never computed with.
struct __attribute__((may_alias)) Pair {
  uint32_t bits;
};
using cpu::load;
PRUN_INLINE float load(const Pair& x) { return __builtin_bit_cast(float, x.bits); }

// Whether a transpose multiplies elements by the scale.
template <class T>
inline constexpr bool kScaled = !std::is_same_v<T, Pair>;

template <class T>
PRUN_INLINE Four load_four(const T* from) {
  return Four{load(from[0]), load(from[1]), load(from[2]), load(from[3])};
}

// Transposes 8 rows of 4 elements. Rows r and r + 4 are loaded as the halves of one vector.
template <class T>
PRUN_INLINE void transpose_8x4(const T* from, int64_t stride, float* to, float scale) {
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
    Eight& at = *reinterpret_cast<Eight*>(to + row * kQueryBlock);
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

// Transposes 16 rows of 4 elements. Rows r, r + 4, r + 8 and r + 12 are loaded as the quarters of one vector.
template <bool scaled>
PRUN_V4 inline void transpose_16x4(const float* from, int64_t stride, float* to, float scale) {
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
  const __m512d columns[] = {_mm512_unpacklo_pd(low[0], low[1]), _mm512_unpackhi_pd(low[0], low[1]),
                             _mm512_unpacklo_pd(high[0], high[1]), _mm512_unpackhi_pd(high[0], high[1])};
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r)
    _mm512_storeu_ps(to + r * kQueryBlock,
                     scaled ? _mm512_mul_ps((__m512)columns[r], _mm512_set1_ps(scale)) : (__m512)columns[r]);
}
template <bool scaled>
PRUN_V4 void transpose_block(const float* from, int64_t stride, float* to, int64_t head, float scale) {
  for (int64_t r = 0; r < kQueryBlock; r += 16)
    for (int64_t i = 0; i < head; i += 4)
      transpose_16x4<scaled>(from + r * stride + i, stride, to + i * kQueryBlock + r, scale);
}
#endif

}  // namespace

template <class T>
PRUN_CLONES void pack_transposed(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, float scale) {
#if defined(__x86_64__)
  if constexpr (sizeof(T) == sizeof(float))
    if (rows == kQueryBlock && head % 4 == 0 && instruction_set() == InstructionSet::avx512)
      return transpose_block<kScaled<T>>(reinterpret_cast<const float*>(from), stride, to, head, scale);
#endif
  const int64_t in_vectors = rows == kQueryBlock ? head / 4 * 4 : 0;
  for (int64_t r = 0; in_vectors > 0 && r < kQueryBlock; r += 8)
    for (int64_t i = 0; i < in_vectors; i += 4)
      transpose_8x4(from + r * stride + i, stride, to + i * kQueryBlock + r, scale);
  for (int64_t i = in_vectors; i < head; ++i) {
    for (int64_t r = 0; r < rows; ++r) {
      const float x = load(from[r * stride + i]);
      to[i * kQueryBlock + r] = kScaled<T> ? scale * x : x;
    }
    for (int64_t r = rows; r < kQueryBlock; ++r) to[i * kQueryBlock + r] = 0;
  }
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

namespace {

// Computes dots[r] = scale · Σ a·b over row r, for at most kQueryBlock rows; 0 after the last.
template <class T>
void row_dots(const T* a, const T* b, int64_t stride, int64_t rows, int64_t head, float scale, float* dots) {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    if constexpr (lanes < 16) {
      const T *x = a, *y = b;
      for (int64_t r = 0; r < rows; ++r, x += stride, y += stride)
        dots[r] = scale * sum_lanes<lanes>(head, [&](auto at) PRUN_INLINED { return at.load(x) * at.load(y); });
    } else {  // a transpose is faster than reductions across 16 lanes
      alignas(64) float parts[kQueryBlock * lanes], transposed[lanes * kQueryBlock];
      for (int64_t r = 0; r < rows; ++r) {
        Floats<lanes> sum{};
        for_lanes<lanes>(head, [&](auto at) PRUN_INLINED { sum += at.load(a + r * stride) * at.load(b + r * stride); });
        store_lanes<lanes>(parts + r * lanes, sum);
      }
      std::fill(parts + rows * lanes, parts + kQueryBlock * lanes, 0.0f);
      pack_transposed(parts, lanes, transposed, kQueryBlock, lanes, scale);
      for (int64_t r = 0; r < kQueryBlock; r += lanes) {
        Floats<lanes> sum{};
        for (int i = 0; i < lanes; ++i) sum += load_lanes<lanes>(transposed + i * kQueryBlock + r);
        store_lanes<lanes>(dots + r, sum);
      }
    }
  });
}

// Masks a vector of queries from `first` on: those before `attending` become `otherwise`.
template <int lanes>
PRUN_INLINE Floats<lanes> mask_before(int64_t attending, int64_t first, const Floats<lanes>& v, float otherwise) {
  static constexpr int32_t kIndices[kQueryBlock / 2] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  typename BitsOf<Floats<lanes>>::Signed index;
  std::memcpy(&index, kIndices, sizeof index);
  return index >= static_cast<int32_t>(attending - first) ? v : Floats<lanes>{} + otherwise;
}

// Returns 2^t: with AVX-512 in 10 instructions instead of power_of_two()'s 13.
template <int lanes>
PRUN_INLINE Floats<lanes> exp2_of(const Floats<lanes>& t) {
  constexpr float kLeast = -100.0f;  // as in power_of_two()
  if constexpr (kScales<Floats<lanes>>) return scaled_exp2_f32(at_least(t, kLeast));
  return power_of_two(t);
}

// Calls f.operator()<first vector, end of the masked vectors>(key) for the keys of a block. On the diagonal the first
// vector is the first one with a query that attends to the key.
template <int lanes, class F>
PRUN_INLINE void each_key(const QueryBlock& block, const F& f) {
  constexpr int64_t kHalf = kQueryBlock / 2;
  int64_t key = 0;
  for (; key < block.before; ++key) f.template operator()<0, 0>(key);
  for (const int64_t end = std::min(block.keys, block.before + kHalf); key < end; ++key)
    f.template operator()<0, kHalf / lanes>(key);
  for (; key < block.keys; ++key) f.template operator()<kHalf / lanes, kQueryBlock / lanes>(key);
}

// Converts scores, in powers of two times `factor`, to unnormalized probabilities, 0 where masked. Two passes over the
// scores: the maximum of each query, then 2^(S - max) and the sum.
void softmax(float* scores, int64_t ld, const QueryBlock& block, float factor, float* lse, float* inverse) {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    using V = Floats<lanes>;
    constexpr float kMasked = -std::numeric_limits<float>::infinity();
    constexpr int kVectors = kQueryBlock / lanes;
    V max[kVectors], sum[kVectors];
    for (int v = 0; v < kVectors; ++v) max[v] = V{} + kMasked, sum[v] = V{};
    each_key<lanes>(block, [&]<int from, int masked>(int64_t key) PRUN_INLINED {
#pragma GCC unroll 8
      for (int v = from; v < kVectors; ++v) {
        const V s = load_lanes<lanes>(scores + key * ld + v * lanes);
        max[v] = kLarger(max[v], v < masked ? mask_before<lanes>(key - block.before, v * lanes, s, kMasked) : s);
      }
    });
    for (int v = 0; v < kVectors; ++v) max[v] *= factor;
    each_key<lanes>(block, [&]<int from, int masked>(int64_t key) PRUN_INLINED {
#pragma GCC unroll 8
      for (int v = from; v < kVectors; ++v) {
        float* s = scores + key * ld + v * lanes;
        V p = exp2_of<lanes>(factor * load_lanes<lanes>(s) - max[v]);
        if (v < masked) p = mask_before<lanes>(key - block.before, v * lanes, p, 0.0f);
        sum[v] += p;
        store_lanes<lanes>(s, p);
      }
    });
    for (int v = 0; v < kVectors; ++v) {
      store_lanes<lanes>(lse + v * lanes, V((max[v] + log2_f32(sum[v])) * 0.693147181f));
      store_lanes<lanes>(inverse + v * lanes, V(1.0f / sum[v]));
    }
  });
}

// Converts in place: scores S to P = 2^(factor · S - shift), and dP to dS = P·(scale · dP - dots), both 0 where masked.
void score_gradients(float* scores, float* dp, int64_t ld, const QueryBlock& block, float factor, float scale,
                     const float* shift, const float* dots) {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    using V = Floats<lanes>;
    constexpr float kMost = 127.0f;  // exponents of a softmax are at most 0
    constexpr int kVectors = kQueryBlock / lanes;
    V less[kVectors], mean[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      less[v] = load_lanes<lanes>(shift + v * lanes);
      mean[v] = load_lanes<lanes>(dots + v * lanes);
    }
    each_key<lanes>(block, [&]<int from, int masked>(int64_t key) PRUN_INLINED {
#pragma GCC unroll 8
      for (int v = from; v < kVectors; ++v) {
        float *s = scores + key * ld + v * lanes, *d = dp + key * ld + v * lanes;
        V p = exp2_of<lanes>(at_most(V(factor * load_lanes<lanes>(s) - less[v]), kMost));
        V ds = p * (scale * load_lanes<lanes>(d) - mean[v]);
        if (v < masked) {
          p = mask_before<lanes>(key - block.before, v * lanes, p, 0.0f);
          ds = mask_before<lanes>(key - block.before, v * lanes, ds, 0.0f);
        }
        store_lanes<lanes>(s, p);
        store_lanes<lanes>(d, ds);
      }
    });
  });
}

template <class T>
void pack_queries(const ScoreKernel& kernel, const HeadRows<T>& from, int64_t rows, float factor, float* to) {
  if constexpr (std::is_same_v<T, bf16>)
    if (kernel.pairs)
      return pack_transposed(reinterpret_cast<const Pair*>(from.data), from.stride / 2, to, rows, kernel.head / 2,
                             1.0f);
  pack_transposed(from.data, from.stride, to, rows, kernel.head, factor);
}

void score(const ScoreKernel& kernel, const QueryBlock& block, const FloatRows& k, const float* queries, float* scores,
           int64_t ld, Prefetcher& prefetch) {
  kernel.pairs ? block.score_pairs(k, kernel.head, queries, scores, ld, prefetch)
               : block.score(k, kernel.head, queries, scores, ld, prefetch);
}

}  // namespace

template <class T>
void block_probabilities(const ScoreKernel& kernel, const QueryBlock& block, const HeadRows<T>& q, const FloatRows& k,
                         float* queries, float* scores, float* lse, float* inverse, Prefetcher& prefetch) {
  const float in_powers = kernel.scale * kLog2E;
  pack_queries(kernel, q, block.rows, in_powers, queries);
  score(kernel, block, k, queries, scores, kQueryBlock, prefetch);
  softmax(scores, kQueryBlock, block, kernel.pairs ? in_powers : 1.0f, lse, inverse);
}

template <class T>
void block_score_gradients(const ScoreKernel& kernel, const QueryBlock& block, const HeadRows<T>& q,
                           const HeadRows<T>& out, const HeadRows<T>& dout, const float* lse, const FloatRows& k,
                           const FloatRows& v, float* queries, float* gradients, float* p, float* ds, int64_t ld,
                           Prefetcher& prefetch) {
  const float in_powers = kernel.scale * kLog2E;
  float dots[kQueryBlock] = {}, shift[kQueryBlock] = {};
  for (int64_t r = 0; r < block.rows; ++r) shift[r] = lse[r] * kLog2E;
  pack_queries(kernel, q, block.rows, in_powers, queries);
  pack_queries(kernel, dout, block.rows, kernel.scale, gradients);
  row_dots(out.data, dout.data, dout.stride, block.rows, kernel.head, kernel.scale, dots);
  score(kernel, block, k, queries, p, ld, prefetch);
  score(kernel, block, v, gradients, ds, ld, prefetch);
  score_gradients(p, ds, ld, block, kernel.pairs ? in_powers : 1.0f, kernel.pairs ? kernel.scale : 1.0f, shift, dots);
}

#define PRUN_INSTANTIATE(T)                                                                                          \
  template void pack_rows(const T*, int64_t, float*, int64_t, int64_t, int64_t);                                     \
  template void pack_transposed(const T*, int64_t, float*, int64_t, int64_t, float);                                 \
  template void unpack_rows(const float*, int64_t, T*, int64_t, int64_t, int64_t);                                   \
  template void block_probabilities(const ScoreKernel&, const QueryBlock&, const HeadRows<T>&, const FloatRows&,     \
                                    float*, float*, float*, float*, Prefetcher&);                                    \
  template void block_score_gradients(const ScoreKernel&, const QueryBlock&, const HeadRows<T>&, const HeadRows<T>&, \
                                      const HeadRows<T>&, const float*, const FloatRows&, const FloatRows&, float*,  \
                                      float*, float*, float*, int64_t, Prefetcher&);
PRUN_INSTANTIATE(float)
PRUN_INSTANTIATE(bf16)
#undef PRUN_INSTANTIATE

}  // namespace prun::cpu
