// One template per element type and operation, compiled for three levels of x86-64 and chosen at load; elsewhere once.
//
// Blocks of 1,024 elements are accumulated in a buffer that stays in the first cache, then written to each output.
#include "reduce.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace prun::shm {
namespace {

#define PRUN_INLINE inline __attribute__((always_inline))

constexpr size_t kBlock = 1024;

struct Bf16 { uint16_t bits; };
struct F16 { uint16_t bits; };

// How a type is stored and in what it accumulates.
template <class T>
struct Plain {
  using Stored = T;
  using Acc = T;
  static PRUN_INLINE T load(T x) { return x; }
  static PRUN_INLINE T store(T x) { return x; }
};
struct Bf16Type {
  using Stored = Bf16;
  using Acc = float;
  static PRUN_INLINE float load(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
  static PRUN_INLINE Bf16 store(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t nan = (u >> 16) | 0x40u;
    return {static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
  }
};
struct F16Type {
  using Stored = F16;
  using Acc = float;
  static PRUN_INLINE float load(F16 x) {
    const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
    const uint32_t rest = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
    // Scaling by 2^112 moves the exponent's bias and makes subnormals normal; infinity and NaN need their exponent back.
    const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p112f);
    const uint32_t special = rest | 0x7f800000u;
    return std::bit_cast<float>(sign | (rest >= 0x0f800000u ? special : scaled));
  }
  static PRUN_INLINE F16 store(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t a = u & 0x7fffffffu;
    const uint32_t normal = (a - 0x38000000u + 0x0fffu + ((a >> 13) & 1u)) >> 13;
    // Adding 0.5 lets the adder round a subnormal at the right bit.
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) - 0x3f000000u;
    uint32_t h = a < 0x38800000u ? small : normal;
    h = a >= 0x477ff000u ? 0x7c00u : h;
    h = a > 0x7f800000u ? (0x7e00u | ((a >> 13) & 0x3ffu)) : h;
    return {static_cast<uint16_t>(sign | h)};
  }
};

// Sums and products of integers wrap; signed overflow would be undefined.
template <class A>
PRUN_INLINE A add(A a, A b) {
  if constexpr (std::is_integral_v<A>) return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else return a + b;
}
template <class A>
PRUN_INLINE A multiply(A a, A b) {
  if constexpr (std::is_integral_v<A>) return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else return a * b;
}
struct Sum { template <class A> static PRUN_INLINE A apply(A a, A b) { return add(a, b); } };
struct Prod { template <class A> static PRUN_INLINE A apply(A a, A b) { return multiply(a, b); } };
struct Min { template <class A> static PRUN_INLINE A apply(A a, A b) { return b < a ? b : a; } };
struct Max { template <class A> static PRUN_INLINE A apply(A a, A b) { return a < b ? b : a; } };

// `average`: n of an avg, else 0.
template <class Type, class Op>
PRUN_INLINE void fold(const void* const* from, int n, size_t offset, size_t count, int average, void* out) {
  using S = typename Type::Stored;
  using A = typename Type::Acc;
  alignas(64) A acc[kBlock];
  const S* first = static_cast<const S*>(from[0]) + offset;
  if (n == 1) {
    for (size_t i = 0; i < count; i++) acc[i] = Type::load(first[i]);
  } else {
    const S* second = static_cast<const S*>(from[1]) + offset;
    for (size_t i = 0; i < count; i++) acc[i] = Op::apply(Type::load(first[i]), Type::load(second[i]));
  }
  for (int k = 2; k < n; k++) {
    const S* next = static_cast<const S*>(from[k]) + offset;
    for (size_t i = 0; i < count; i++) acc[i] = Op::apply(acc[i], Type::load(next[i]));
  }
  if (average) {
    if constexpr (std::is_integral_v<A>) {
      for (size_t i = 0; i < count; i++) acc[i] = static_cast<A>(static_cast<int64_t>(acc[i]) / average);
    } else {
      const A scale = A(1) / static_cast<A>(average);
      for (size_t i = 0; i < count; i++) acc[i] = acc[i] * scale;
    }
  }
  S* result = static_cast<S*>(out);
  for (size_t i = 0; i < count; i++) result[i] = Type::store(acc[i]);
}

using Fold = void (*)(const void* const*, int, size_t, size_t, int, void*);

template <class Type, class Op>
void fold_any(const void* const* from, int n, size_t offset, size_t count, int average, void* out) {
  fold<Type, Op>(from, n, offset, count, average, out);
}
#if defined(__x86_64__)
template <class Type, class Op>
__attribute__((target("avx2"))) void fold_v3(const void* const* from, int n, size_t offset, size_t count, int average,
                                             void* out) {
  fold<Type, Op>(from, n, offset, count, average, out);
}
template <class Type, class Op>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))) void fold_v4(
    const void* const* from, int n, size_t offset, size_t count, int average, void* out) {
  fold<Type, Op>(from, n, offset, count, average, out);
}
#endif

template <class Type, class Op>
Fold choose() {
#if defined(__x86_64__)
  static const int level = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
      return 4;
    return __builtin_cpu_supports("avx2") ? 3 : 1;
  }();
  if (level == 4) return fold_v4<Type, Op>;
  if (level == 3) return fold_v3<Type, Op>;
#endif
  return fold_any<Type, Op>;
}

template <class Type>
Fold choose(int redop) {
  switch (redop) {
    case 1: return choose<Type, Prod>();
    case 2: return choose<Type, Min>();
    case 3: return choose<Type, Max>();
    default: return choose<Type, Sum>();  // and avg
  }
}

Fold choose(int dtype, int redop) {  // in the order of prun_dtype
  switch (dtype) {
    case 0: return choose<Plain<double>>(redop);
    case 1: return choose<Plain<float>>(redop);
    case 2: return choose<Bf16Type>(redop);
    case 3: return choose<F16Type>(redop);
    case 4: return choose<Plain<int64_t>>(redop);
    case 5: return choose<Plain<int32_t>>(redop);
    case 6: return choose<Plain<int8_t>>(redop);
    default: return choose<Plain<uint8_t>>(redop);
  }
}

}  // namespace

size_t dtype_bytes(int dtype) {
  constexpr size_t kBytes[] = {8, 4, 2, 2, 8, 4, 1, 1};
  return dtype >= 0 && dtype < 8 ? kBytes[dtype] : 0;
}

void copy(void* to, const void* from, size_t bytes, bool stream) {
  if (bytes == 0 || to == from) return;
#if defined(__x86_64__)
  if (stream && bytes >= 256) {
    auto* t = static_cast<std::byte*>(to);
    auto* f = static_cast<const std::byte*>(from);
    const size_t head = (16 - reinterpret_cast<uintptr_t>(t) % 16) % 16;
    std::memcpy(t, f, head);
    size_t i = head;
    for (; i + 64 <= bytes; i += 64) {
      for (size_t k = 0; k < 64; k += 16)
        _mm_stream_si128(reinterpret_cast<__m128i*>(t + i + k),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(f + i + k)));
    }
    std::memcpy(t + i, f + i, bytes - i);
    _mm_sfence();
    return;
  }
#else
  (void)stream;
#endif
  std::memcpy(to, from, bytes);
}

void reduce(int dtype, int redop, const void* const* from, int n, void* const* to, int m, size_t count, bool stream) {
  const Fold f = choose(dtype, redop);
  const size_t size = dtype_bytes(dtype);
  const int average = redop == 4 ? n : 0;
  alignas(64) std::byte block[kBlock * 8];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t now = std::min(kBlock, count - at);
    // Straight to the one output where there is one: its block is read (as an input) before it is written.
    if (m == 1 && !stream) {
      f(from, n, at, now, average, static_cast<std::byte*>(to[0]) + at * size);
      continue;
    }
    f(from, n, at, now, average, block);
    for (int k = 0; k < m; k++) copy(static_cast<std::byte*>(to[k]) + at * size, block, now * size, stream);
  }
}

}  // namespace prun::shm
