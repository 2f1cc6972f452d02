// Every input is copied first: slow, and right by inspection.
#include "exec/plain_collectives.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "device/bf16.h"

namespace prun {
namespace {

using Bytes = std::vector<std::byte>;

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u,
                 fraction = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -tiny : tiny;
}

// Round to nearest even by trying the neighbours: halves are few, tests are small.
uint16_t float_to_half(float value) {
  const uint16_t sign = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16 & 0x8000u);
  const float size = sign ? -value : value;
  if (size != size) return static_cast<uint16_t>(sign | 0x7e00u);
  if (size >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00u);
  uint16_t low = 0, high = 0x7c00;  // bit patterns of halves are ordered as their values
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (half_to_float(middle) <= size ? low : high) = middle;
  }
  const double below = static_cast<double>(size) - half_to_float(low);
  const double above = (high == 0x7c00 ? 65536.0 : static_cast<double>(half_to_float(high))) - size;
  const bool up = above < below || (above == below && (low & 1));
  return static_cast<uint16_t>(sign | (up ? high : low));
}

// Loads element i of `from` as a Sum, and stores one.
template <Dtype dtype>
struct Element;
template <>
struct Element<Dtype::bf16> {
  using Sum = float;
  static float load(const std::byte* from, int64_t i) { return to_float(reinterpret_cast<const bf16*>(from)[i]); }
  static void store(void* to, int64_t i, float x) { static_cast<bf16*>(to)[i] = to_bf16(x); }
};
template <>
struct Element<Dtype::f16> {
  using Sum = float;
  static float load(const std::byte* from, int64_t i) {
    return half_to_float(reinterpret_cast<const uint16_t*>(from)[i]);
  }
  static void store(void* to, int64_t i, float x) { static_cast<uint16_t*>(to)[i] = float_to_half(x); }
};
template <class T, class S>
struct Native {
  using Sum = S;
  static S load(const std::byte* from, int64_t i) { return static_cast<S>(reinterpret_cast<const T*>(from)[i]); }
  static void store(void* to, int64_t i, S x) { static_cast<T*>(to)[i] = static_cast<T>(x); }
};
template <>
struct Element<Dtype::f64> : Native<double, double> {};
template <>
struct Element<Dtype::f32> : Native<float, float> {};
// Unsigned sums wrap as two's complement does, without undefined overflow.
template <>
struct Element<Dtype::i64> : Native<int64_t, int64_t> {};
template <>
struct Element<Dtype::i32> : Native<int32_t, int64_t> {};
template <>
struct Element<Dtype::i8> : Native<int8_t, int64_t> {};
template <>
struct Element<Dtype::u8> : Native<uint8_t, uint64_t> {};

template <class S>
S combine(RedOp op, S a, S b) {
  switch (op) {
    case RedOp::min:
      return b < a ? b : a;
    case RedOp::max:
      return b > a ? b : a;
    case RedOp::prod:
      if constexpr (std::is_integral_v<S>)
        return static_cast<S>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      else
        return a * b;
    case RedOp::sum:
    case RedOp::avg:
      if constexpr (std::is_integral_v<S>)
        return static_cast<S>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
      else
        return a + b;
  }
  return a;
}

// out[i] = inputs[0][first + i] op inputs[1][first + i] op ...
template <Dtype dtype>
void reduce_typed(RedOp op, const std::vector<Bytes>& inputs, int64_t first, int64_t count, void* out) {
  using E = Element<dtype>;
  using S = typename E::Sum;
  const S n = static_cast<S>(inputs.size());
  for (int64_t i = 0; i < count; i++) {
    S sum = E::load(inputs[0].data(), first + i);
    for (size_t rank = 1; rank < inputs.size(); rank++) sum = combine(op, sum, E::load(inputs[rank].data(), first + i));
    if (op == RedOp::avg) {
      if constexpr (std::is_floating_point_v<S>)
        sum = sum * (S(1) / n);
      else
        sum = sum / n;
    }
    E::store(out, i, sum);
  }
}

void reduce(Dtype dtype, RedOp op, const std::vector<Bytes>& inputs, int64_t first, int64_t count, void* out) {
  switch (dtype) {
    case Dtype::f64:
      return reduce_typed<Dtype::f64>(op, inputs, first, count, out);
    case Dtype::f32:
      return reduce_typed<Dtype::f32>(op, inputs, first, count, out);
    case Dtype::bf16:
      return reduce_typed<Dtype::bf16>(op, inputs, first, count, out);
    case Dtype::f16:
      return reduce_typed<Dtype::f16>(op, inputs, first, count, out);
    case Dtype::i64:
      return reduce_typed<Dtype::i64>(op, inputs, first, count, out);
    case Dtype::i32:
      return reduce_typed<Dtype::i32>(op, inputs, first, count, out);
    case Dtype::i8:
      return reduce_typed<Dtype::i8>(op, inputs, first, count, out);
    case Dtype::u8:
      return reduce_typed<Dtype::u8>(op, inputs, first, count, out);
  }
}

void put(void* out, int64_t at, const Bytes& bytes, int64_t from, int64_t size) {
  if (size > 0) std::memcpy(static_cast<std::byte*>(out) + at, bytes.data() + from, static_cast<size_t>(size));
}

}  // namespace

void run_plain_collective(std::string_view kind, Dtype dtype, RedOp op, int root,
                          const std::vector<PlainMember>& members) {
  if (kind == "barrier") return;
  const size_t n = members.size();
  const int64_t wide = dtype_bytes(dtype);
  std::vector<Bytes> inputs;
  std::vector<int64_t> shares;
  for (const PlainMember& member : members) {
    const std::byte* in = static_cast<const std::byte*>(member.in);
    inputs.emplace_back(in, in + member.in_count * wide);
    shares.push_back(member.share != nullptr ? *member.share : member.in_count);
  }
  for (size_t rank = 0; rank < n; rank++) {
    const PlainMember& me = members[rank];
    const bool is_root = static_cast<int>(rank) == root;
    if (kind == "all_reduce" || (kind == "reduce" && is_root)) {
      reduce(dtype, op, inputs, 0, me.out_count, me.out);
    } else if (kind == "reduce_scatter") {
      reduce(dtype, op, inputs, static_cast<int64_t>(rank) * me.out_count, me.out_count, me.out);
    } else if (kind == "broadcast") {
      put(me.out, 0, inputs[root], 0, me.out_count * wide);
    } else if (kind == "scatter") {
      put(me.out, 0, inputs[root], static_cast<int64_t>(rank) * me.out_count * wide, me.out_count * wide);
    } else if (kind == "all_gather" || (kind == "gather" && is_root) || kind == "all_gather_v") {
      int64_t at = 0;
      for (size_t other = 0; other < n; other++) {
        put(me.out, at, inputs[other], 0, shares[other] * wide);
        at += shares[other] * wide;
        if (me.shares != nullptr) me.shares[other] = shares[other];
      }
    } else if (kind == "all_to_all") {
      const int64_t piece = me.in_count / static_cast<int64_t>(n) * wide;
      for (size_t other = 0; other < n; other++) {
        put(me.out, static_cast<int64_t>(other) * piece, inputs[other], static_cast<int64_t>(rank) * piece, piece);
      }
    } else {
      PRUN_CHECK(kind == "reduce" || kind == "gather", "no collective " + std::string(kind));
    }
  }
}

}  // namespace prun
