// Element types of data files: unsigned and signed integers, and floats, little-endian.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace prun {

enum class Element : uint8_t { u8, u16, u32, i32, i64, f32, f64 };

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
    case Element::f32:
      return f(static_cast<const float*>(data));
    case Element::f64:
      break;
  }
  return f(static_cast<const double*>(data));
}

}  // namespace prun
