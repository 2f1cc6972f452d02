// The headers as llm.c's dev/data/data_common.py writes them.
#include "data/token_file.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"

namespace prun {
namespace {

struct Format {
  int32_t magic, version;
  Element element;
};
constexpr Format kFormats[] = {{20240520, 1, Element::u16}, {20240801, 7, Element::u32}};

int32_t word(std::string_view begin, size_t i) {
  int32_t value = 0;
  std::memcpy(&value, begin.data() + 4 * i, 4);
  return value;
}

}  // namespace

std::optional<TokenHeader> parse_token_header(std::string_view begin) {
  if (begin.starts_with("\x93NUMPY"))
    throw plan_error("it is an array of numpy: write its ids with .tofile, or read it with prun.data.arrays");
  if (begin.size() < kTokenHeaderBytes) return std::nullopt;
  for (const Format& format : kFormats) {
    if (word(begin, 0) != format.magic) continue;
    if (word(begin, 1) != format.version)
      throw plan_error(
          fmt::format("its header of llm.c is of version {}, and version {} is known", word(begin, 1), format.version));
    return TokenHeader{format.element, word(begin, 2)};
  }
  return std::nullopt;
}

}  // namespace prun
