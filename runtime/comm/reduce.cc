// The loops of reduce(): blocks that stay in the first-level cache, one clone for each width of vectors.
//
// Surprising fact: sanitizers cannot see the clones, because resolvers of ifuncs run before their own start-up.
#include "comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PRUN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PRUN_CLONES
#endif
#define PRUN_INLINE inline __attribute__((always_inline))

namespace prun {
namespace {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

PRUN_INLINE float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Round to nearest even; a NaN stays one.
PRUN_INLINE Bf16 to_bf16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  uint32_t nan = bits >> 16 | 0x40u;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

// Without branches, so that it vectorizes, and without subnormal floats, which cost a hundred cycles each.
PRUN_INLINE float to_float(F16 x) {
  uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu, shifted = rest << 13;
  float subnormal = std::bit_cast<float>(shifted + (113u << 23)) - std::bit_cast<float>(113u << 23);
  uint32_t bits = rest < 0x400u ? std::bit_cast<uint32_t>(subnormal) : shifted + (112u << 23);
  bits = rest >= 0x7c00u ? shifted + (224u << 23) : bits;
  return std::bit_cast<float>(bits | sign);
}

PRUN_INLINE F16 to_f16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  // Normal: rebase the exponent, round to nearest even. Subnormal: let the addition of 0.5 align and round.
  uint32_t normal = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
  uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + 0.5f) - 0x3f000000u;
  uint32_t half = rest < 0x38800000u ? subnormal : normal;
  half = rest >= 0x477ff000u ? 0x7c00u : half;  // from 65520 on: infinity
  half = rest > 0x7f800000u ? 0x7e00u : half;
  return {static_cast<uint16_t>(half | sign)};
}

// How an element of a buffer becomes one of the type that is computed in, and back.
template <typename T>
struct Element {
  using Sum = T;
  static PRUN_INLINE T load(T x) { return x; }
  static PRUN_INLINE T store(T x) { return x; }
};
template <>
struct Element<Bf16> {
  using Sum = float;
  static PRUN_INLINE float load(Bf16 x) { return to_float(x); }
  static PRUN_INLINE Bf16 store(float x) { return to_bf16(x); }
};
template <>
struct Element<F16> {
  using Sum = float;
  static PRUN_INLINE float load(F16 x) { return to_float(x); }
  static PRUN_INLINE F16 store(float x) { return to_f16(x); }
};

// Wrapping: signed overflow is undefined, and narrow types are promoted to int.
template <typename T>
PRUN_INLINE T add(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    return a + b;
  else
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
template <typename T>
PRUN_INLINE T multiply(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    return a * b;
  else
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

template <RedOp op, typename S>
PRUN_INLINE S combine(S a, S b) {
  if constexpr (op == RedOp::prod)
    return multiply(a, b);
  else if constexpr (op == RedOp::min)
    return b < a ? b : a;
  else if constexpr (op == RedOp::max)
    return b > a ? b : a;
  else
    return add(a, b);
}

template <RedOp op, typename T, typename S>
PRUN_INLINE void reduce_body(const void* const* inputs, int n, T* out, int64_t count, int divisor) {
  constexpr int64_t kBlock = 1024;
  alignas(64) S sums[kBlock];
  const S inverse = std::is_floating_point_v<S> ? static_cast<S>(1) / static_cast<S>(divisor) : static_cast<S>(0);
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t m = std::min(kBlock, count - at);
    const T* first = static_cast<const T*>(inputs[0]) + at;
    const T* second = static_cast<const T*>(inputs[n > 1 ? 1 : 0]) + at;
    if (n > 1) {
      for (int64_t i = 0; i < m; ++i) {
        sums[i] = combine<op>(static_cast<S>(Element<T>::load(first[i])), static_cast<S>(Element<T>::load(second[i])));
      }
    } else {
      for (int64_t i = 0; i < m; ++i) sums[i] = static_cast<S>(Element<T>::load(first[i]));
    }
    for (int k = 2; k < n; ++k) {
      const T* next = static_cast<const T*>(inputs[k]) + at;
      for (int64_t i = 0; i < m; ++i) sums[i] = combine<op>(sums[i], static_cast<S>(Element<T>::load(next[i])));
    }
    T* to = out + at;
    if constexpr (op == RedOp::avg) {
      for (int64_t i = 0; i < m; ++i) {
        if constexpr (std::is_floating_point_v<S>)
          to[i] = Element<T>::store(sums[i] * inverse);
        else
          to[i] = static_cast<T>(sums[i] / static_cast<S>(divisor));
      }
    } else {
      for (int64_t i = 0; i < m; ++i) {
        if constexpr (std::is_integral_v<T>)
          to[i] = static_cast<T>(sums[i]);
        else
          to[i] = Element<T>::store(sums[i]);
      }
    }
  }
}

// An average of integers is summed in 64 bits; everything else in the element's own type of sum.
template <typename T>
struct Wide {
  using Sum = typename Element<T>::Sum;
};
template <>
struct Wide<int8_t> {
  using Sum = int64_t;
};
template <>
struct Wide<int32_t> {
  using Sum = int64_t;
};
template <>
struct Wide<uint8_t> {
  using Sum = uint64_t;
};

template <typename T>
PRUN_INLINE void reduce_dtype(RedOp op, const void* const* inputs, int n, void* out, int64_t count, int divisor) {
  using S = typename Element<T>::Sum;
  T* to = static_cast<T*>(out);
  switch (op) {
    case RedOp::sum:
      return reduce_body<RedOp::sum, T, S>(inputs, n, to, count, divisor);
    case RedOp::prod:
      return reduce_body<RedOp::prod, T, S>(inputs, n, to, count, divisor);
    case RedOp::min:
      return reduce_body<RedOp::min, T, S>(inputs, n, to, count, divisor);
    case RedOp::max:
      return reduce_body<RedOp::max, T, S>(inputs, n, to, count, divisor);
    case RedOp::avg:
      return reduce_body<RedOp::avg, T, typename Wide<T>::Sum>(inputs, n, to, count, divisor);
  }
}

#define PRUN_REDUCE(name, T)                                                                                 \
  PRUN_CLONES void name(RedOp op, const void* const* inputs, int n, void* out, int64_t count, int divisor) { \
    reduce_dtype<T>(op, inputs, n, out, count, divisor);                                                     \
  }
PRUN_REDUCE(reduce_f64, double)
PRUN_REDUCE(reduce_f32, float)
PRUN_REDUCE(reduce_bf16, Bf16)
PRUN_REDUCE(reduce_f16, F16)
PRUN_REDUCE(reduce_i64, int64_t)
PRUN_REDUCE(reduce_i32, int32_t)
PRUN_REDUCE(reduce_i8, int8_t)
PRUN_REDUCE(reduce_u8, uint8_t)
#undef PRUN_REDUCE

}  // namespace

void reduce(Dtype dtype, RedOp op, const void* const* inputs, int n, void* out, int64_t count, int divisor) {
  switch (dtype) {
    case Dtype::f64:
      return reduce_f64(op, inputs, n, out, count, divisor);
    case Dtype::f32:
      return reduce_f32(op, inputs, n, out, count, divisor);
    case Dtype::bf16:
      return reduce_bf16(op, inputs, n, out, count, divisor);
    case Dtype::f16:
      return reduce_f16(op, inputs, n, out, count, divisor);
    case Dtype::i64:
      return reduce_i64(op, inputs, n, out, count, divisor);
    case Dtype::i32:
      return reduce_i32(op, inputs, n, out, count, divisor);
    case Dtype::i8:
      return reduce_i8(op, inputs, n, out, count, divisor);
    case Dtype::u8:
      return reduce_u8(op, inputs, n, out, count, divisor);
  }
}

}  // namespace prun
