// Functions of numbers that CUDA C++ has beyond <cmath>. The fast approximations are exact here: how far they are off
// is for a GPU to say.
#pragma once
#include <sched.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanhf(float x) { return std::tanh(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / std::sqrt(x); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
// Never contracted with a neighbour: kept apart from it by an empty assembly.
template <class T>
inline T substitute_apart(T x) {
  asm volatile("" : "+m"(x));
  return x;
}
inline float __fadd_rn(float x, float y) { return substitute_apart(x + y); }
inline float __fsub_rn(float x, float y) { return substitute_apart(x - y); }
inline float __fmul_rn(float x, float y) { return substitute_apart(x * y); }
inline double __dadd_rn(double x, double y) { return substitute_apart(x + y); }
inline double __dmul_rn(double x, double y) { return substitute_apart(x * y); }
inline void __sincosf(float x, float* s, float* c) { *s = std::sin(x), *c = std::cos(x); }
inline float sinpif(float x) { return static_cast<float>(std::sin(M_PI * std::fmod(double{x}, 2.0))); }
inline float cospif(float x) { return static_cast<float>(std::cos(M_PI * std::fmod(double{x}, 2.0))); }
inline double sinpi(double x) { return std::sin(M_PI * std::fmod(x, 2.0)); }
inline double cospi(double x) { return std::cos(M_PI * std::fmod(x, 2.0)); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
inline void sincospi(double x, double* s, double* c) { *s = sinpi(x), *c = cospi(x); }
inline float normcdff(float x) { return 0.5f * std::erfc(-x * 0.70710678118654752f); }
inline double normcdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752); }

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>(uint64_t{x} * y >> 32); }
inline int __mulhi(int x, int y) { return static_cast<int>(int64_t{x} * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned>(x)); }
inline int __ffsll(long long x) { return x == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned long long>(x)); }
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1u) << (31 - i);
  return y;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = uint64_t{y} << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned which = selector >> 4 * i & 0xf, byte = static_cast<unsigned>(both >> 8 * (which & 7)) & 0xff;
    out |= (which & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << 8 * i;
  }
  return out;
}

// As CUDA's, which take two types where std::min takes one. Of a number and a NaN they give the number.
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) inline std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = static_cast<T>(a), y = static_cast<T>(b);
  if constexpr (std::is_floating_point_v<T>) return std::fmin(x, y);
  return y < x ? y : x;
}
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) inline std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = static_cast<T>(a), y = static_cast<T>(b);
  if constexpr (std::is_floating_point_v<T>) return std::fmax(x, y);
  return x < y ? y : x;
}

template <class T>
inline T __ldg(const T* at) {
  return *at;
}
template <class T>
inline T __ldcg(const T* at) {
  return *at;
}
template <class T>
inline T __ldcs(const T* at) {
  return *at;
}
template <class T>
inline void __stcg(T* at, std::type_identity_t<T> x) {
  *at = x;
}
template <class T>
inline void __stcs(T* at, std::type_identity_t<T> x) {
  *at = x;
}
template <class T>
inline void __stwb(T* at, std::type_identity_t<T> x) {
  *at = x;
}
[[noreturn]] inline void __trap() { __builtin_trap(); }
inline void __nanosleep(unsigned) { sched_yield(); }
