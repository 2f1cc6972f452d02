// Headers of array files (.npy, and .safetensors with one tensor) and of token files (llm.c's).
//
// The .npy header's dictionary is a Python literal with three keys in any order; only numpy's own output is parsed.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/data_files.h"

namespace prun {
namespace {

[[noreturn]] void damaged(std::string_view what) { throw plan_error(fmt::format("its .npy header {}", what)); }

// Returns the text after "'key': " in the dictionary.
std::string_view field(std::string_view header, std::string_view key) {
  const std::string name = fmt::format("'{}':", key);
  const size_t at = header.find(name);
  if (at == std::string_view::npos) damaged(fmt::format("has no '{}'", key));
  std::string_view rest = header.substr(at + name.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

Element element_of(std::string_view descr) {
  struct Name {
    std::string_view descr;
    Element element;
  };
  constexpr Name kNames[] = {{"|u1", Element::u8},  {"|b1", Element::u8},  {"<u2", Element::u16},
                             {"<u4", Element::u32}, {"<i4", Element::i32}, {"<i8", Element::i64},
                             {"<f2", Element::f16}, {"<f4", Element::f32}, {"<f8", Element::f64}};
  if (!descr.starts_with('\'')) throw plan_error("it is an array of records: save each field as an array of its own");
  descr = descr.substr(1, descr.find('\'', 1) - 1);
  for (const Name& name : kNames)
    if (name.descr == descr) return name.element;
  if (descr.starts_with('>'))
    throw plan_error(
        fmt::format("its numbers are in big-endian order ('{}'): save a.astype('<{}')", descr, descr.substr(1)));
  throw plan_error(
      fmt::format("its numbers are '{}', and bool, uint8, uint16, uint32, int32, int64, float16, float32 and float64 "
                  "are read: save a.astype('float32'), say",
                  descr));
}

// Reads the header of a safetensors file, a JSON object after its length. The data of its only tensor end the file.
ArrayHeader parse_safetensors(std::string_view begin, uint64_t size) {
  if (size > begin.size() - 8)
    throw plan_error(fmt::format("its header has {} bytes: save one tensor in a file, without metadata", size));
  const nlohmann::json header = nlohmann::json::parse(begin.substr(8, size), nullptr, false);
  if (!header.is_object()) throw plan_error("its header is not that of a safetensors file");
  ArrayHeader result;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    names.push_back(name);
    const nlohmann::json dtype = tensor.value("dtype", nlohmann::json()),
                         shape = tensor.value("shape", nlohmann::json());
    std::string element = dtype.is_string() ? dtype.get<std::string>() : dtype.dump();
    std::ranges::transform(element, element.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::optional<Element> known = parse_element(element == "bool" ? "u8" : element);
    if (!known)
      throw plan_error(
          fmt::format("'{}' has elements {}, and BOOL, U8, U16, U32, I32, I64, F16, BF16, F32 and F64 are "
                      "read",
                      name, dtype.dump()));
    if (!shape.is_array() || !std::ranges::all_of(shape, [](const auto& dim) { return dim.is_number_unsigned(); }))
      throw plan_error(fmt::format("'{}' has no shape", name));
    result = {*known, shape.get<std::vector<int64_t>>(), static_cast<int64_t>(8 + size)};
  }
  if (names.size() != 1)
    throw plan_error(
        fmt::format("it has {} tensors, and an input is one: save each in a file of its own", names.size()));
  return result;
}

// Returns the length of a safetensors header; 0 = the file begins otherwise.
uint64_t safetensors_header(std::string_view begin) {
  if (begin.size() < 10 || begin[8] != '{') return 0;
  uint64_t size = 0;
  for (size_t i = 0; i < 8; ++i) size |= uint64_t{static_cast<unsigned char>(begin[i])} << 8 * i;
  return size;
}

std::vector<int64_t> shape_of(std::string_view text) {
  std::vector<int64_t> shape;
  if (!text.starts_with('(')) damaged("has no shape");
  const std::string_view numbers = text.substr(1, text.find(')') - 1);
  for (const char *p = numbers.data(), *end = p + numbers.size(); p < end;) {
    if (*p == ' ' || *p == ',') {
      ++p;
      continue;
    }
    int64_t size = 0;
    const auto [next, error] = std::from_chars(p, end, size);
    if (error != std::errc() || size < 0) damaged("has no shape");
    shape.push_back(size);
    p = next;
  }
  return shape;
}

}  // namespace

ArrayHeader parse_array_header(std::string_view begin) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (const uint64_t size = safetensors_header(begin); size > 0) return parse_safetensors(begin, size);
  if (!begin.starts_with(kMagic) || begin.size() < 12)
    throw plan_error("not a .npy file; numpy.save(file, array) writes one");
  const int version = static_cast<unsigned char>(begin[6]);
  if (version < 1 || version > 3) damaged(fmt::format("is of version {}, and 1 to 3 are known", version));
  const size_t width = version == 1 ? 2 : 4, prefix = 8 + width;
  size_t size = 0;
  for (size_t i = 0; i < width; ++i) size |= static_cast<size_t>(static_cast<unsigned char>(begin[8 + i])) << 8 * i;
  if (prefix + size > begin.size()) damaged(fmt::format("of {} bytes does not end", size));
  const std::string_view header = begin.substr(prefix, size);
  if (field(header, "fortran_order").starts_with("True"))
    throw plan_error("its elements are stored column by column; save numpy.ascontiguousarray(a)");
  ArrayHeader result;
  result.element = element_of(field(header, "descr"));
  result.shape = shape_of(field(header, "shape"));
  result.skip_bytes = static_cast<int64_t>(prefix + size);
  return result;
}

// The headers that llm.c's dev/data/data_common.py writes.

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

// Returns whether the bytes are UTF-8 without control characters; a character at the end may be incomplete. In ids of
// 16 or 32 bits some byte of a kilobyte is a control character.
bool is_text(std::string_view bytes) {
  constexpr std::string_view kSpace = "\t\n\r\f";
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const bool plain = (lead >= 0x20 && lead < 0x7f) || kSpace.find(bytes[i]) != std::string_view::npos;
    const size_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (!plain && (lead < 0xc2 || lead > 0xf4)) return false;
    for (size_t next = i + 1; !plain && next <= i + more && next < bytes.size(); ++next)
      if ((static_cast<unsigned char>(bytes[next]) & 0xc0) != 0x80) return false;
    i += plain ? 1 : 1 + more;
  }
  return !bytes.empty();
}

struct Magic {
  std::string_view bytes, kind;
};
constexpr Magic kOthers[] = {{"PAR1", "a Parquet file"},
                             {"ARROW1", "an Arrow file"},
                             {"\x1f\x8b\x08", "compressed by gzip"},
                             {"\x28\xb5\x2f\xfd", "compressed by zstd"},
                             {"PK\x03\x04", "a zip archive"}};

}  // namespace

std::string_view kind_without_ids(std::string_view begin) {
  for (const Magic& other : kOthers)
    if (begin.starts_with(other.bytes)) return other.kind;
  return is_text(begin) ? "text" : "";
}

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
