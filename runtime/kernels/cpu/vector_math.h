// exp, sigmoid, the normal distribution and gelu as branch-free polynomials, of a float or of a vector of them. exp is
// within two ULP; gelu and its derivative within 2e-6 relative, 3e-6 in their tails, until these
// fall below 1e-30.
#pragma once
#include <cstdint>
#include <type_traits>

#include "base/vector_asm.h"
#include "base/vector_clones.h"
#include "device/bf16.h"
#include "kernels/cpu/vector_group.h"

namespace prun::cpu {

// Integers with the bits of a float, or of each float in a vector.
template <class V>
struct BitsOf {
  typedef uint32_t Words __attribute__((vector_size(sizeof(V))));
  typedef int32_t Signed __attribute__((vector_size(sizeof(V))));
};
template <>
struct BitsOf<float> {
  using Words = uint32_t;
  using Signed = int32_t;
};
template <class V>
using WordsOf = typename BitsOf<V>::Words;

// Return the smaller or the larger of both; a NaN x remains NaN. They take one instruction instead of a comparison and
// a select. Accepts groups.
template <class V>
PRUN_INLINE V at_most(V x, float most) {
  const auto of_one = [=]<class One>(const One& one) PRUN_INLINED -> One {
    if constexpr (kVectorAsm && sizeof(One) >= 32) {
      One found;
      asm("vminps %1, %2, %0" : "=v"(found) : "v"(one), "v"(One{} + most));
      return found;
    }
    return one > most ? most : one;
  };
  return each_of(of_one, x);
}
template <class V>
PRUN_INLINE V at_least(V x, float least) {
  const auto of_one = [=]<class One>(const One& one) PRUN_INLINED -> One {
    if constexpr (kVectorAsm && sizeof(One) >= 32) {
      One found;
      asm("vmaxps %1, %2, %0" : "=v"(found) : "v"(one), "v"(One{} + least));
      return found;
    }
    return one < least ? least : one;
  };
  return each_of(of_one, x);
}

// Returns e^r for |r| <= ln2/2, within 3e-9: the polynomial of least relative error (Remez) with the value 1 at 0.
template <class V>
PRUN_INLINE V exp_series_f32(V r) {
  return 1.0f + r * (1.0f + r * (0.50000006f +
                                 r * (0.166663646f + r * (0.0416647717f + r * (0.00837905891f + r * 0.00140614226f)))));
}

// exp(x) = 2^n · e^r with |r| <= ln2/2; ln2 is split in two parts (Cody and Waite).
template <class V>
PRUN_INLINE V exp_f32(V x) {
  using Signed = typename BitsOf<V>::Signed;
  constexpr float kRound = 12582912.0f;
  const V clamped = x < -104.0f ? -104.0f : (x > 88.72f ? 88.72f : x);
  const V shifted = clamped * 1.44269504f + kRound;  // its low bits are n, the nearest integer
  const V n = shifted - kRound;
  const V r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
  const V p = exp_series_f32(r);
  // 2^n in two factors, because one would leave the exponent's range at both ends.
  const Signed whole = __builtin_bit_cast(Signed, shifted) - __builtin_bit_cast(int32_t, kRound), half = whole >> 1;
  const V a = __builtin_bit_cast(V, (half + 127) << 23), b = __builtin_bit_cast(V, (whole - half + 127) << 23);
  return x != x ? x : p * a * b;
}

// Returns p · 2^n, where n are the low bits of `shifted`, if it is in the range of one factor. Accepts groups.
template <class V>
PRUN_INLINE V times_power(const V& p, const V& shifted) {
  const auto of_one = []<class One>(const One& x, const One& n) PRUN_INLINED {
    return __builtin_bit_cast(One, __builtin_bit_cast(WordsOf<One>, x) + (__builtin_bit_cast(WordsOf<One>, n) << 23));
  };
  return each_of(of_one, p, shifted);
}

// Returns 1/x with at least the 12 bits of the CPU's approximation, or exactly rounded without one. Accepts groups.
template <class V>
PRUN_INLINE V rough_reciprocal_f32(const V& x) {
  const auto of_one = []<class One>(const One& one) PRUN_INLINED -> One {
    One r;
    if constexpr (kVectorAsm && sizeof(One) == 64)
      asm("vrcp14ps %1, %0" : "=v"(r) : "v"(one));
    else if constexpr (kVectorAsm && sizeof(One) == 32)
      asm("vrcpps %1, %0" : "=x"(r) : "x"(one));
    else
      r = 1.0f / one;
    return r;
  };
  return each_of(of_one, x);
}
// Returns 1/x for moderate x: a Newton step on the CPU's approximation, in a quarter of a division's time. Accepts
// groups.
template <class V>
PRUN_INLINE V reciprocal_f32(V x) {
  const V r = rough_reciprocal_f32(x);
  if constexpr (!kVectorAsm || kVectorBytes<V> < 32) return r;
  return r + r * (1.0f - x * r);
}

// Returns 2^t, with t clamped to ±126. 2^f of the distance f to the nearest integer is the polynomial of least relative
// error (Remez, 1.1e-7 in f32) with the value 1 at 0. A NaN may give a number. Accepts groups.
template <class V>
PRUN_INLINE V exp2_f32(V t) {
  constexpr float kMost = 126.0f, kRound = 12582912.0f;
  const V clamped = at_least(at_most(t, kMost), -kMost), shifted = clamped + kRound, f = clamped - (shifted - kRound);
  const V p =
      1.0f + f * (0.693147004f + f * (0.240222424f + f * (0.0555073358f + f * (0.00967151299f + f * 0.00132647273f))));
  return times_power(p, shifted);
}

// Returns 2^t for t < 128, with t clamped to at least -100: relative to the largest power, 1, such a power is
// negligible, and multiplying by it gives no subnormal numbers. NaNs propagate. The polynomial is that of exp2_f32.
// Accepts groups.
template <class V>
PRUN_INLINE V power_of_two(V t) {
  constexpr float kLeast = -100.0f, kRound = 12582912.0f + 127;  // with an exponent's bias
  const V clamped = at_least(t, kLeast), shifted = clamped + kRound, f = clamped - (shifted - kRound);
  const V p =
      1.0f + f * (0.693147004f + f * (0.240222424f + f * (0.0555073358f + f * (0.00967151299f + f * 0.00132647273f))));
  const auto power = []<class One>(const One& n)
                         PRUN_INLINED { return __builtin_bit_cast(One, __builtin_bit_cast(WordsOf<One>, n) << 23); };
  return p * each_of(power, shifted);
}

// Returns log2 of a normal number, within 2e-7 if it is at least 1. NaNs propagate. (ln(1 + m) - m + m²/2)/m³ is a
// polynomial fitted at Chebyshev nodes on [√½ - 1, √2 - 1].
template <class V>
PRUN_INLINE V log2_f32(V x) {
  using Signed = typename BitsOf<V>::Signed;
  constexpr int32_t kRootOfHalf = 0x3f3504f3, kMantissa = 0x7fffff;
  const Signed bits = __builtin_bit_cast(Signed, x) - kRootOfHalf, whole = bits >> 23;
  const V m = __builtin_bit_cast(V, (bits & kMantissa) + kRootOfHalf) - 1.0f, square = m * m;
  V p = 0.126223209f - m * 0.0790274591f;
  p = p * m - 0.129981835f;
  p = p * m + 0.142144958f;
  p = p * m - 0.166412815f;
  p = p * m + 0.200010451f;
  p = p * m - 0.250003064f;
  p = p * m + 0.333333307f;
  const V log = m - 0.5f * square + square * m * p;
  V exponent;
  if constexpr (sizeof(V) == sizeof(float))
    exponent = static_cast<float>(whole);
  else
    exponent = __builtin_convertvector(whole, V);
  return x != x ? x : exponent + 1.44269504f * log;
}

// Returns e^-x for a sigmoid, with x clamped to ±87, where 2^n is one factor: two thirds of exp_f32's work. A NaN may
// give a number, so the caller multiplies by x.
template <class V>
PRUN_INLINE V sigmoid_power_f32(V x) {
  constexpr float kMost = 87.0f, kRound = 12582912.0f;
  const V clamped = at_least(at_most(V(-x), kMost), -kMost);
  const V shifted = clamped * 1.44269504f + kRound;
  const V n = shifted - kRound;
  return times_power(exp_series_f32(V((clamped - n * 0.693145752f) - n * 1.42860677e-6f)), shifted);
}

// Operations with an AVX-512 instruction: x - floor(x), 0 for infinities, and p · 2^floor(x), for exponents of any
// size. Accept groups.
template <class V>
inline constexpr bool kScales = kVectorAsm&& kVectorBytes<V> == 64;
template <class V>
PRUN_INLINE V behind_floor(const V& x) {
  const auto of_one = []<class One>(const One& one) PRUN_INLINED {
    One f;
    asm("vreduceps $1, %1, %0" : "=v"(f) : "v"(one));
    return f;
  };
  return each_of(of_one, x);
}
template <class V>
PRUN_INLINE V times_floor_power(const V& p, const V& x) {
  const auto of_one = []<class One>(const One& one, const One& exponent) PRUN_INLINED {
    One power;
    asm("vscalefps %2, %1, %0" : "=v"(power) : "v"(one), "v"(exponent));
    return power;
  };
  return each_of(of_one, p, x);
}

// Returns 2^t for any t on CPUs with kScales; slow below the normal numbers unless these are flushed. NaNs propagate.
// The polynomial has the least relative error on [0, 1] (1.5e-7 in f32) with the values 1 at 0 and 2 at 1. Accepts
// groups.
template <class V>
PRUN_INLINE V scaled_exp2_f32(const V& t) {
  const V f = behind_floor(t);
  const V p =
      1.0f + f * (0.693151712f + f * (0.240159333f + f * (0.0558186546f + f * (0.00899099559f + f * 0.0018793178f))));
  return times_floor_power(p, t);
}

// Returns 2^f for 0 <= f <= 1, within 3e-6: the polynomial of least relative error of its degree with the value 1 at 0.
template <class V>
PRUN_INLINE V rough_exp2_series_f32(V f) {
  return 1.0f + f * (0.693045378f + f * (0.241276190f + f * (0.0522510707f + f * 0.0134213269f)));
}

// Returns 2^t, within 3e-6 if it is a normal number. Accepts groups.
template <class V>
PRUN_INLINE V rough_exp2_f32(V t) {
  if constexpr (kScales<V>) {
    return times_floor_power(rough_exp2_series_f32(behind_floor(t)), t);
  } else {
    constexpr float kRound = 12582912.0f;
    const V clamped = at_least(at_most(t, 126.0f), -126.0f);
    const V shifted = (clamped - 0.5f) + kRound;  // its low bits are the floor
    return times_power(rough_exp2_series_f32(V(clamped - (shifted - kRound))), shifted);
  }
}

// Returns e^-x for sigmoids, with the precision of results of type T.
template <class T, class V>
PRUN_INLINE V sigmoid_power(V x) {
  if constexpr (std::is_same_v<T, bf16>)
    return rough_exp2_f32(V(x * -1.44269504f));
  else
    return sigmoid_power_f32(x);
}
// Returns the sigmoid 1/(1 + power): for bf16 within 7e-5, a thirtieth of the rounding error.
template <class T, class V>
PRUN_INLINE V sigmoid_from(V power) {
  const V below = 1.0f + power;
  if constexpr (kVectorAsm && std::is_same_v<T, bf16> && kVectorBytes<V> == 64)
    return rough_reciprocal_f32(below);
  else
    return reciprocal_f32(below);
}
template <class T, class V>
PRUN_INLINE V sigmoid_of(V x) {
  return sigmoid_from<T>(sigmoid_power<T>(x));
}
// A sigmoid s and 1 - s without cancellation for s near 1; both for sums that nearly cancel.
template <class V>
struct Sigmoid {
  V s, rest;
};
template <class V>
PRUN_INLINE Sigmoid<V> sigmoid_and_rest_from(V found) {
  const V power = at_most(found, 3e38f);  // infinity · 0 is NaN
  const V s = reciprocal_f32(V(1.0f + power));
  return {s, power * s};
}
template <class T, class V>
PRUN_INLINE Sigmoid<V> sigmoid_and_rest(V x) {
  return sigmoid_and_rest_from(sigmoid_power<T>(x));
}

// Returns Φ(x), the normal distribution function, as erfc of |x|/√2. With t = 1/(1 + z/2), erfc(z)·exp(z²)/t is a
// polynomial in t, fitted at Chebyshev nodes on [0.16, 1]: relative error 6e-9.
template <class V>
PRUN_INLINE V normal_cdf_f32(V x) {
  const V magnitude = x < 0 ? -x : x;
  const V z = (magnitude > 14.0f ? 14.0f : magnitude) * 0.707106781f;
  const V t = reciprocal_f32(V(1.0f + 0.5f * z));
  V p = t * 0.033485039f - 0.178156416f;
  p = p * t + 0.349765877f;
  p = p * t - 0.245094417f;
  p = p * t - 0.0614391267f;
  p = p * t + 0.0584197086f;
  p = p * t + 0.0459849883f;
  p = p * t + 0.18783574f;
  p = p * t + 0.244828028f;
  p = p * t + 0.282283208f;
  p = p * t + 0.282087374f;
  const V tail = 0.5f * p * t * exp_f32(-z * z);
  return x != x ? x : (x < 0 ? tail : 1.0f - tail);
}

// Gelu: x·Φ(x), or with the tanh formula of Hendrycks and Gimpel, which is x·sigmoid(2·√(2/π)·(x + 0.044715·x³)).
inline constexpr float kGeluA = 1.59576912f;    // 2·√(2/π)
inline constexpr float kGeluB = 0.0713548163f;  // kGeluA · 0.044715
inline constexpr float kGeluA2 = 2.30220820f;   // kGeluA · log2 e
inline constexpr float kGeluB2 = 0.102943240f;  // kGeluB · log2 e

// Returns the power of the tanh formula's sigmoid, from x and its square. A NaN may give a number.
template <class T, class V>
PRUN_INLINE V gelu_power(V x, V square) {
  const V t = x * (-kGeluA2 - kGeluB2 * square);
  if constexpr (std::is_same_v<T, bf16>)
    return rough_exp2_f32(t);
  else
    return exp2_f32(t);
}
template <class T, class V>
PRUN_INLINE V gelu_tanh(V x) {
  return x * sigmoid_from<T>(gelu_power<T>(x, V(x * x)));
}
template <class T, class V>
PRUN_INLINE V gelu_tanh_derivative(V x) {
  const V square = x * x;
  const auto [s, rest] = sigmoid_and_rest_from(gelu_power<T>(x, square));
  return s * (1.0f + rest * (x * (kGeluA + 3.0f * kGeluB * square)));
}
template <class V>
PRUN_INLINE V gelu_erf_f32(V x) {
  return x * normal_cdf_f32(x);
}
template <class V>
PRUN_INLINE V gelu_erf_derivative_f32(V x) {
  return normal_cdf_f32(x) + x * 0.398942280f * exp_f32(-0.5f * x * x);
}

}  // namespace prun::cpu
