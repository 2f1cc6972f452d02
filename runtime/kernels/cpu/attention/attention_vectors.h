// Vectors of 16 floats for attention in bf16: 2^t, reductions across lanes, and rounding to bf16.
#pragma once

#include "kernels/cpu/intrinsics.h"

namespace prun::cpu {

// Returns 2^t with a relative error of 3e-7, and 0 where t is -inf. 2^f, f = t - ⌊t⌋, is a minimax polynomial (Remez;
// relative error 8.3e-8) with the value 1 at 0.
PRUN_AVX512_BF16 inline __m512 exp2_of(__m512 t) {
  constexpr int kFraction = 1;
  const __m512 f = _mm512_reduce_ps(t, kFraction);
  __m512 p = _mm512_set1_ps(0.00186713007f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00901703032f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0557999131f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240164450f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693151312f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, t);
}

// Computes exp2_of of several vectors at once, which hides the latency of the FMAs.
template <int kCount>
PRUN_AVX512_BF16 inline void exp2_of_each(__m512 (&t)[kCount]) {
  constexpr int kFraction = 1;
  constexpr float kFactors[] = {0.00901703032f, 0.0557999131f, 0.240164450f, 0.693151312f, 1.0f};
  __m512 f[kCount], p[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) f[i] = _mm512_reduce_ps(t[i], kFraction);
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) p[i] = _mm512_set1_ps(0.00186713007f);
#pragma GCC unroll 5
  for (const float factor : kFactors) {
    const __m512 next = _mm512_set1_ps(factor);
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) p[i] = _mm512_fmadd_ps(p[i], f[i], next);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) t[i] = _mm512_scalef_ps(p[i], t[i]);
}

// Returns lo of x = hi + lo, where hi is x truncated to bf16. Rounding lo to bf16 leaves an error of 2⁻¹⁶ of x.
PRUN_AVX512_BF16 inline __m512 lo_of(__m512 x) {
  const __m512 hi = (__m512)_mm512_and_si512((__m512i)x, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  return (__m512)_mm512_add_epi32((__m512i)_mm512_sub_ps(x, hi), _mm512_set1_epi32(0x8000));
}

// Splits x = hi + lo with hi rounded to nearest; the error is 2⁻¹⁷ of x.
struct HiLo {
  __m512 hi, lo;
};
PRUN_AVX512_BF16 inline HiLo split_hi_lo(__m512 x) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512 hi =
      (__m512)_mm512_and_si512(_mm512_add_epi32((__m512i)x, half), _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  return {hi, (__m512)_mm512_add_epi32((__m512i)_mm512_sub_ps(x, hi), half)};
}

// Interleaves the high 16 bits of two vectors' elements to pairs of bf16. Uses a shuffle, because AMX leaves the
// shuffle port free, but not that of shifts.
PRUN_AVX512_BF16 inline __m512i pairs_of(__m512 first, __m512 second) {
  constexpr __mmask64 kLowerHalves = 0x3333333333333333u;
  const __m512i down = _mm512_set_epi64(0x0f0e0f0e0b0a0b0a, 0x0706070603020302, 0x0f0e0f0e0b0a0b0a, 0x0706070603020302,
                                        0x0f0e0f0e0b0a0b0a, 0x0706070603020302, 0x0f0e0f0e0b0a0b0a, 0x0706070603020302);
  return _mm512_mask_shuffle_epi8((__m512i)second, kLowerHalves, (__m512i)first, down);
}

// The order in which reduce_rows() interleaves halves, quarters, ... of 16 vectors.
inline constexpr int kRowOrder[16] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};

struct Maximum {
  static PRUN_AVX512_BF16 inline __m512 of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
};
struct Sum {
  static PRUN_AVX512_BF16 inline __m512 of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
};

// Reduces each of 16 rows: element r is the sum, or the maximum, of rows[r].
template <class Of>
PRUN_AVX512_BF16 inline __m512 reduce_rows(const __m512 (&rows)[16]) {
  __m512 v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = rows[kRowOrder[i]];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    v[i] = Of::of(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44), _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    v[i] = Of::of(_mm512_shuffle_f32x4(v[i], v[i + 4], 0x88), _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    v[i] = Of::of(_mm512_shuffle_ps(v[i], v[i + 2], 0x44), _mm512_shuffle_ps(v[i], v[i + 2], 0xee));
  return Of::of(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd));
}

}  // namespace prun::cpu
