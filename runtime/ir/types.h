// Element types and shapes. The numbers of Dtype are those of prun_dtype in prun/transport.h and must not change.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace prun {

enum class Dtype : uint8_t { f64 = 0, f32 = 1, bf16 = 2, f16 = 3, i64 = 4, i32 = 5, i8 = 6, u8 = 7 };

int64_t dtype_bytes(Dtype dtype);
bool computes(Dtype dtype);  // f64, f32, bf16: ops compute with it; others are stored, moved or used as counts
std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> parse_dtype(std::string_view name);

enum class RedOp : uint8_t { sum = 0, prod = 1, min = 2, max = 3, avg = 4 };
std::string_view redop_name(RedOp op);
std::optional<RedOp> parse_redop(std::string_view name);

using Shape = std::vector<int64_t>;  // row-major, outermost dim first; a scalar is {}
inline int64_t element_count(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}
// Returns the bytes of a tensor of a program; nullopt above 2^60. Flat vectors of all parameters must fit, too.
std::optional<int64_t> byte_count(Dtype dtype, const Shape& shape);
// Returns whether a model or its data may have a tensor of this shape: at most 2^46 elements, so that sums of bytes
// cannot overflow int64.
constexpr int64_t kMostElements = int64_t{1} << 46;
bool is_countable(const Shape& shape);
std::string shape_text(const Shape& shape);  // "[8, 128, 256]"

constexpr int64_t kAlignBytes = 64;  // every tensor in a flat vector and every buffer starts on a cache line
inline int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

}  // namespace prun
