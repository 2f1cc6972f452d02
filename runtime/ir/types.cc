// Names and sizes of element types.
#include "ir/types.h"

#include <fmt/format.h>

#include <array>

namespace prun {
namespace {

struct DtypeRow {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<DtypeRow, 8> kDtypes = {
    {{"f64", 8}, {"f32", 4}, {"bf16", 2}, {"f16", 2}, {"i64", 8}, {"i32", 4}, {"i8", 1}, {"u8", 1}}};
constexpr std::array<std::string_view, 5> kRedOps = {"sum", "prod", "min", "max", "avg"};

}  // namespace

int64_t dtype_bytes(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].bytes; }
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

int64_t element_count(const Shape& shape) {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace prun
