// Math functions that CUDA C++ has beyond <cmath>. The fast approximations are exact here; only a GPU can show their
// errors.
#pragma once
#include <sched.h>

#include <cmath>
#include <type_traits>

inline float __expf(float x) { return std::exp(x); }
inline double cospi(double x) { return std::cos(std::remainder(x, 2) * 3.14159265358979323846); }
inline double sinpi(double x) { return std::sin(std::remainder(x, 2) * 3.14159265358979323846); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
// Prevents contraction with a neighbouring operation, by an empty assembly.
template <class T>
inline T substitute_apart(T x) {
  asm volatile("" : "+m"(x));
  return x;
}
inline float __fadd_rn(float x, float y) { return substitute_apart(x + y); }
inline float __fmul_rn(float x, float y) { return substitute_apart(x * y); }

// CUDA's min and max accept two types, where std::min accepts one. With a number and a NaN they return the number.
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
inline void __stcs(T* at, std::type_identity_t<T> x) {
  *at = x;
}
template <class T>
inline void __stwb(T* at, std::type_identity_t<T> x) {
  *at = x;
}
inline void __nanosleep(unsigned) { sched_yield(); }
