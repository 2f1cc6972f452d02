// Element types of data files and feeds: unsigned and signed integers, and floats, little-endian.
#pragma once
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "prun/sdk/float16.h"

namespace prun {

enum class Element : uint8_t { u8, u16, u32, i32, i64, f16, bf16, f32, f64 };

// A float of 16 bits, which converts to numbers.
template <Element kKind>
struct Float16 {
  uint16_t bits;
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr explicit operator T() const {
    const uint32_t word = bits;
    return static_cast<T>(std::bit_cast<float>(kKind == Element::f16 ? sdk::widen_f16<float>(word) : word << 16));
  }
};

std::optional<Element> parse_element(std::string_view name);  // for example "u16"
std::string_view element_name(Element element);
std::string_view numpy_name(Element element);  // numpy's name, for example "uint16"
int64_t element_width(Element element);        // bytes
bool is_float(Element element);

// Calls f(const T*) with `data` cast to the element's type.
template <class F>
decltype(auto) with_elements(Element element, const void* data, const F& f) {
  switch (element) {
    case Element::u8:
      return f(static_cast<const uint8_t*>(data));
    case Element::u16:
      return f(static_cast<const uint16_t*>(data));
    case Element::u32:
      return f(static_cast<const uint32_t*>(data));
    case Element::i32:
      return f(static_cast<const int32_t*>(data));
    case Element::i64:
      return f(static_cast<const int64_t*>(data));
    case Element::f16:
      return f(static_cast<const Float16<Element::f16>*>(data));
    case Element::bf16:
      return f(static_cast<const Float16<Element::bf16>*>(data));
    case Element::f32:
      return f(static_cast<const float*>(data));
    case Element::f64:
      break;
  }
  return f(static_cast<const double*>(data));
}

}  // namespace prun
