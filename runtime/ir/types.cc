// Names and sizes of element types.
#include "ir/types.h"

#include <fmt/format.h>

#include <array>

namespace prun {
namespace {

struct DtypeRow {
  std::string_view name;
  int64_t bytes;
  bool computes;  // ops compute with it as a float
};
constexpr std::array<DtypeRow, 8> kDtypes = {{{"f64", 8, true},
                                              {"f32", 4, true},
                                              {"bf16", 2, true},
                                              {"f16", 2, false},
                                              {"i64", 8, false},
                                              {"i32", 4, false},
                                              {"i8", 1, false},
                                              {"u8", 1, false}}};
constexpr std::array<std::string_view, 5> kRedOps = {"sum", "prod", "min", "max", "avg"};

}  // namespace

int64_t dtype_bytes(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].bytes; }
bool computes(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].computes; }
std::string_view dtype_name(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i)
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  return std::nullopt;
}

std::string_view redop_name(RedOp op) { return kRedOps[static_cast<size_t>(op)]; }

std::optional<RedOp> parse_redop(std::string_view name) {
  for (size_t i = 0; i < kRedOps.size(); ++i)
    if (kRedOps[i] == name) return static_cast<RedOp>(i);
  return std::nullopt;
}

bool is_countable(const Shape& shape) {
  double n = 1;
  for (int64_t dim : shape) n *= static_cast<double>(dim);
  return n <= static_cast<double>(kMostElements);
}

std::optional<int64_t> byte_count(Dtype dtype, const Shape& shape) {
  constexpr int64_t kMost = int64_t{1} << 60;
  int64_t bytes = dtype_bytes(dtype);
  for (const int64_t dim : shape)
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  return bytes <= kMost ? std::optional(bytes) : std::nullopt;
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace prun
