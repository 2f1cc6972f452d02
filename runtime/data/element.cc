#include "data/element.h"

#include <iterator>

namespace prun {
namespace {

struct Row {
  std::string_view name, numpy;
  int64_t width;
};
constexpr Row kRows[] = {{"u8", "uint8", 1},      {"u16", "uint16", 2},  {"u32", "uint32", 4},
                         {"i32", "int32", 4},     {"i64", "int64", 8},   {"f16", "float16", 2},
                         {"bf16", "bfloat16", 2}, {"f32", "float32", 4}, {"f64", "float64", 8}};

const Row& row(Element element) { return kRows[static_cast<size_t>(element)]; }

}  // namespace

std::optional<Element> parse_element(std::string_view name) {
  for (size_t i = 0; i < std::size(kRows); ++i)
    if (kRows[i].name == name) return static_cast<Element>(i);
  return std::nullopt;
}

std::string_view element_name(Element element) { return row(element).name; }
std::string_view numpy_name(Element element) { return row(element).numpy; }
int64_t element_width(Element element) { return row(element).width; }
bool is_float(Element element) { return element >= Element::f16; }

}  // namespace prun
