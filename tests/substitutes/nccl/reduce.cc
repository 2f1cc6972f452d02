#include "reduce.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/substitutes/cuda/substitute.h"

namespace substitute {
namespace {

struct Bf16 {
  uint16_t bits;
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  static Bf16 of(float x) {
    const uint32_t b = std::bit_cast<uint32_t>(x);
    return {static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16)};
  }
};

template <class T>
auto wide(T x) {
  if constexpr (std::is_same_v<T, Bf16> || std::is_same_v<T, _Float16>)
    return static_cast<float>(x);
  else
    return x;
}
template <class T, class W>
T narrow(W x) {
  if constexpr (std::is_same_v<T, Bf16>)
    return Bf16::of(x);
  else
    return static_cast<T>(x);
}

template <class T>
T combine(ncclRedOp_t op, T a, T b) {
  auto x = wide(a), y = wide(b);
  using W = decltype(x);
  // Drops a NaN, as fminf and fmaxf do.
  if (op == ncclMin) return y < x || x != x ? b : a;
  if (op == ncclMax) return y > x || x != x ? b : a;
  if constexpr (std::is_integral_v<W>) {
    const uint64_t p = static_cast<uint64_t>(x), q = static_cast<uint64_t>(y);
    return static_cast<T>(op == ncclProd ? p * q : p + q);
  } else {
    return narrow<T>(op == ncclProd ? x * y : x + y);
  }
}

template <class T>
void run(ncclRedOp_t op, const std::vector<const char*>& inputs, size_t count, char* out) {
  auto load = [&](size_t rank, size_t i) {
    T value;
    std::memcpy(&value, inputs[rank] + i * sizeof(T), sizeof value);
    if (op == ncclAvg) {
      using W = decltype(wide(value));
      if constexpr (std::is_floating_point_v<W>) return narrow<T>(wide(value) * (W{1} / static_cast<W>(inputs.size())));
      die("an average of integers");
    }
    return value;
  };
  for (size_t i = 0; i < count; ++i) {
    T sum = load(0, i);
    for (size_t rank = 1; rank < inputs.size(); ++rank) sum = combine(op, sum, load(rank, i));
    std::memcpy(out + i * sizeof(T), &sum, sizeof sum);
  }
}

}  // namespace

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
    case ncclInt64:
    case ncclUint64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
    case ncclUint32:
      return 4;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

void reduce(ncclDataType_t type, ncclRedOp_t op, const std::vector<const char*>& inputs, size_t count, char* out) {
  switch (type) {
    case ncclFloat64:
      return run<double>(op, inputs, count, out);
    case ncclFloat32:
      return run<float>(op, inputs, count, out);
    case ncclBfloat16:
      return run<Bf16>(op, inputs, count, out);
    case ncclFloat16:
      return run<_Float16>(op, inputs, count, out);
    case ncclInt64:
      return run<int64_t>(op, inputs, count, out);
    case ncclInt32:
      return run<int32_t>(op, inputs, count, out);
    case ncclInt8:
      return run<int8_t>(op, inputs, count, out);
    case ncclUint8:
      return run<uint8_t>(op, inputs, count, out);
    default:
      die("a type that the plugin has no use for");
  }
}

}  // namespace substitute
