// What attention in bf16 computes in vectors of 16 numbers: 2^t, sums across them, and rounding.
#pragma once

#include "kernels/cpu/intrinsics.h"

namespace prun::cpu {

// 2^t within 3e-7 of it, and 0 where t is -inf. 2^f of f = t - ⌊t⌋ is a polynomial of least relative error (8.3e-8, by
// Remez' exchange) among those that are 1 at 0.
PRUN_AVX512_BF16 inline __m512 exp2_of(__m512 t) {
  constexpr int kBehindFloor = 1;
  const __m512 f = _mm512_reduce_ps(t, kBehindFloor);
  __m512 p = _mm512_set1_ps(0.00186713007f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00901703032f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0557999131f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240164450f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693151312f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, t);
}

// The same of several at once, whose instructions do not wait for each other.
template <int kCount>
PRUN_AVX512_BF16 inline void exp2_of_each(__m512 (&t)[kCount]) {
  constexpr int kBehindFloor = 1;
  constexpr float kFactors[] = {0.00901703032f, 0.0557999131f, 0.240164450f, 0.693151312f, 1.0f};
  __m512 f[kCount], p[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) f[i] = _mm512_reduce_ps(t[i], kBehindFloor);
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

// What is left of a number behind the upper half of its bits, to the nearest: together they are off by 2⁻¹⁶ of it.
PRUN_AVX512_BF16 inline __m512 rounded_rest_of(__m512 x) {
  const __m512 upper = (__m512)_mm512_and_si512((__m512i)x, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  return (__m512)_mm512_add_epi32((__m512i)_mm512_sub_ps(x, upper), _mm512_set1_epi32(0x8000));
}

// The same of a number whose upper half is rounded to the nearest, too: off by 2⁻¹⁷.
struct TwoParts {
  __m512 upper, rest;
};
PRUN_AVX512_BF16 inline TwoParts in_two(__m512 x) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512 upper =
      (__m512)_mm512_and_si512(_mm512_add_epi32((__m512i)x, half), _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  return {upper, (__m512)_mm512_add_epi32((__m512i)_mm512_sub_ps(x, upper), half)};
}

// The upper halves of two vectors as pairs. A shuffle, as tiles leave shuffles' port alone, but not that of shifts.
PRUN_AVX512_BF16 inline __m512i paired(__m512 first, __m512 second) {
  constexpr __mmask64 kLowerHalves = 0x3333333333333333u;
  const __m512i down = _mm512_set_epi64(0x0f0e0f0e0b0a0b0a, 0x0706070603020302, 0x0f0e0f0e0b0a0b0a, 0x0706070603020302,
                                        0x0f0e0f0e0b0a0b0a, 0x0706070603020302, 0x0f0e0f0e0b0a0b0a, 0x0706070603020302);
  return _mm512_mask_shuffle_epi8((__m512i)second, kLowerHalves, (__m512i)first, down);
}

// The numbers from 0 on in the order in which across() puts halves, quarters ... of 16 vectors beside each other.
inline constexpr int kPlaces[16] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};

struct Largest {
  static PRUN_AVX512_BF16 inline __m512 of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
};
struct Sum {
  static PRUN_AVX512_BF16 inline __m512 of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
};

// Element r: the sum, or the largest, of all elements of rows[r].
template <class Of>
PRUN_AVX512_BF16 inline __m512 across(const __m512 (&rows)[16]) {
  __m512 v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = rows[kPlaces[i]];
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
