// The element types: the C++ type of each dtype, and access to elements of any dtype as doubles.
//
// A dtype with arithmetic is a row of PRUN_ELEMENT_TYPES. f16 has none: transports move it, no device computes with it.
#pragma once
#include <cstdint>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "device/bf16.h"
#include "ir/types.h"

namespace prun {

#define PRUN_ELEMENT_TYPES(X) \
  X(f64, double)              \
  X(f32, float)               \
  X(bf16, bf16)               \
  X(i64, int64_t)             \
  X(i32, int32_t)             \
  X(i8, int8_t)               \
  X(u8, uint8_t)

template <class T>
inline constexpr Dtype kDtypeOf = Dtype::f16;
#define PRUN_DTYPE_OF(dtype, type) \
  template <>                      \
  inline constexpr Dtype kDtypeOf<type> = Dtype::dtype;
PRUN_ELEMENT_TYPES(PRUN_DTYPE_OF)
#undef PRUN_DTYPE_OF

// Calls f<T>() with the type of `dtype`.
template <class F>
auto with_element_type(Dtype dtype, const F& f) {
  switch (dtype) {
#define PRUN_CASE(name, type) \
  case Dtype::name:           \
    return f.template operator()<type>();
    PRUN_ELEMENT_TYPES(PRUN_CASE)
#undef PRUN_CASE
    default:
      PRUN_CHECK(false, "no arithmetic on " + std::string(dtype_name(dtype)));
      return f.template operator()<double>();
  }
}

template <class T>
constexpr double number_of(T element) {
  if constexpr (std::is_same_v<T, bf16>)
    return static_cast<double>(to_float(element));
  else
    return static_cast<double>(element);
}
template <class T>
constexpr T element_of(double number) {
  if constexpr (std::is_same_v<T, bf16>)
    return to_bf16(static_cast<float>(number));
  else
    return static_cast<T>(number);
}

inline double load_element(Dtype dtype, const void* data, int64_t i) {
  return with_element_type(dtype, [&]<class T>() { return number_of(static_cast<const T*>(data)[i]); });
}
inline void store_element(Dtype dtype, void* data, int64_t i, double number) {
  with_element_type(dtype, [&]<class T>() { static_cast<T*>(data)[i] = element_of<T>(number); });
}

}  // namespace prun
