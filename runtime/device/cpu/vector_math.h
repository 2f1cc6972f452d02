// exp, sigmoid, the normal distribution and gelu as branch-free polynomials that vectorize; f32. exp is within two
// units in the last place; gelu and its derivative within 2e-6 relative until their tails fall below 1e-30.
#pragma once
#include "device/cpu/simd.h"

namespace prun::cpu {

// e^r for |r| <= ln2/2, by its Taylor series to r^7.
PRUN_INLINE float exp_series_f32(float r) {
  return 1.0f +
         r * (1.0f + r * (1.0f / 2 +
                          r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720 + r * (1.0f / 5040)))))));
}

// exp(x) = 2^n · e^r with |r| <= ln2/2; ln2 in two parts (Cody and Waite).
PRUN_INLINE float exp_f32(float x) {
  const float clamped = x < -104.0f ? -104.0f : (x > 88.72f ? 88.72f : x);
  const float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounds to the nearest whole number
  const float r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
  const float p = exp_series_f32(r);
  // 2^n in two factors: one alone would leave the exponent's range at both ends.
  const int32_t whole = static_cast<int32_t>(n), half = whole >> 1;
  const float a = __builtin_bit_cast(float, (half + 127) << 23),
              b = __builtin_bit_cast(float, (whole - half + 127) << 23);
  return x != x ? x : p * a * b;
}

// exp of a number up to 88, and 0 where it is below the smallest normal number: half of exp_f32's work, for softmax.
PRUN_INLINE float exp_or_zero_f32(float x) {
  constexpr float kLeast = -87.3f, kRound = 12582912.0f;
  const float clamped = x < kLeast ? kLeast : x;
  const float shifted = clamped * 1.44269504f + kRound;  // its last bits are n
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
  const float p = exp_series_f32(r);
  const uint32_t scaled = __builtin_bit_cast(uint32_t, p) + (__builtin_bit_cast(uint32_t, shifted) << 23);
  return x >= kLeast ? __builtin_bit_cast(float, scaled) : (x < kLeast ? 0.0f : x);
}

// Of what lies beyond ±87 as of ±87, where 2^n is one factor: two thirds of exp_f32's work. Of a NaN it may be a
// number: who calls it multiplies by x.
PRUN_INLINE float sigmoid_f32(float x) {
  constexpr float kMost = 87.0f, kRound = 12582912.0f;
  const float u = -x, clamped = u < -kMost ? -kMost : (u > kMost ? kMost : u);
  const float shifted = clamped * 1.44269504f + kRound;  // its last bits are n
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
  const uint32_t scaled =
      __builtin_bit_cast(uint32_t, exp_series_f32(r)) + (__builtin_bit_cast(uint32_t, shifted) << 23);
  return 1.0f / (1.0f + __builtin_bit_cast(float, scaled));
}

// Φ(x), the normal distribution function, as erfc of |x|/√2. erfc(z)·exp(z²)/t is a polynomial in t = 1/(1 + z/2),
// fitted at Chebyshev nodes on [0.16, 1]: relative error 6e-9.
PRUN_INLINE float normal_cdf_f32(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float z = (magnitude > 14.0f ? 14.0f : magnitude) * 0.707106781f;
  const float t = 1.0f / (1.0f + 0.5f * z);
  float p = 0.033485039f;
  p = p * t - 0.178156416f;
  p = p * t + 0.349765877f;
  p = p * t - 0.245094417f;
  p = p * t - 0.0614391267f;
  p = p * t + 0.0584197086f;
  p = p * t + 0.0459849883f;
  p = p * t + 0.18783574f;
  p = p * t + 0.244828028f;
  p = p * t + 0.282283208f;
  p = p * t + 0.282087374f;
  const float tail = 0.5f * p * t * exp_f32(-z * z);
  return x != x ? x : (x < 0 ? tail : 1.0f - tail);
}

// Gelu: x·Φ(x), or with the tanh formula of Hendrycks and Gimpel, which is x·sigmoid(2·√(2/π)·(x + 0.044715·x³)).
inline constexpr float kGeluA = 1.59576912f;    // 2·√(2/π)
inline constexpr float kGeluB = 0.0713548163f;  // kGeluA · 0.044715

PRUN_INLINE float gelu_tanh_f32(float x) { return x * sigmoid_f32(x * (kGeluA + kGeluB * x * x)); }
PRUN_INLINE float gelu_tanh_derivative_f32(float x) {
  const float s = sigmoid_f32(x * (kGeluA + kGeluB * x * x));
  return s + x * s * (1.0f - s) * (kGeluA + 3.0f * kGeluB * x * x);
}
PRUN_INLINE float gelu_erf_f32(float x) { return x * normal_cdf_f32(x); }
PRUN_INLINE float gelu_erf_derivative_f32(float x) {
  return normal_cdf_f32(x) + x * 0.398942280f * exp_f32(-0.5f * x * x);
}

}  // namespace prun::cpu
