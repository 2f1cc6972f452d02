// The reference deliberately uses slow conversions (ldexp, nearbyint), which share nothing with the tested loops.
#include "tests/conformance/reference.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace prun::testing {
namespace {

bool is_float(Dtype dtype) { return dtype <= Dtype::f16; }

// A 16-bit float format: number of mantissa bits and exponent range.
struct Narrow {
  int mantissa, min_exponent, max_exponent;
};
Narrow narrow(Dtype dtype) { return dtype == Dtype::bf16 ? Narrow{7, -126, 127} : Narrow{10, -14, 15}; }

double decode16(Dtype dtype, uint16_t bits) {
  Narrow n = narrow(dtype);
  int exponent = (bits & 0x7fff) >> n.mantissa, fraction = bits & ((1 << n.mantissa) - 1);
  if (exponent == n.max_exponent - n.min_exponent + 2 && fraction != 0) return std::nan("");
  double value = exponent == 0 ? std::ldexp(fraction, n.min_exponent - n.mantissa)
                               : std::ldexp(fraction + (1 << n.mantissa), exponent - 1 + n.min_exponent - n.mantissa);
  return (bits & 0x8000) != 0 ? -value : value;
}

uint16_t encode16(Dtype dtype, double value) {
  Narrow n = narrow(dtype);
  if (std::isnan(value)) return 0x7fff;
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  value = std::fabs(value);
  int exponent = value == 0 ? n.min_exponent : std::max(n.min_exponent, std::ilogb(value));
  double units = std::nearbyint(std::ldexp(value, n.mantissa - exponent));  // round half to even
  auto whole = static_cast<int64_t>(units);
  int64_t bits = whole + (static_cast<int64_t>(exponent - n.min_exponent) << n.mantissa);
  int64_t infinity = static_cast<int64_t>(n.max_exponent - n.min_exponent + 2) << n.mantissa;
  return static_cast<uint16_t>(sign | std::min(bits, infinity));
}

template <typename T>
T at(const char* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof value);
  return value;
}
template <typename T>
void put(char* data, int64_t i, T value) {
  std::memcpy(data + i * static_cast<int64_t>(sizeof(T)), &value, sizeof value);
}

double load_float(Dtype dtype, const char* data, int64_t i) {
  if (dtype == Dtype::f64) return at<double>(data, i);
  return dtype == Dtype::f32 ? at<float>(data, i) : decode16(dtype, at<uint16_t>(data, i));
}
void store_float(Dtype dtype, char* data, int64_t i, double value) {
  if (dtype == Dtype::f64)
    put(data, i, value);
  else if (dtype == Dtype::f32)
    put(data, i, static_cast<float>(value));
  else
    put(data, i, encode16(dtype, value));
}
int64_t load_int(Dtype dtype, const char* data, int64_t i) {
  switch (dtype) {
    case Dtype::i64:
      return at<int64_t>(data, i);
    case Dtype::i32:
      return at<int32_t>(data, i);
    case Dtype::i8:
      return at<int8_t>(data, i);
    default:
      return at<uint8_t>(data, i);
  }
}
void store_int(Dtype dtype, char* data, int64_t i, int64_t value) {
  switch (dtype) {
    case Dtype::i64:
      return put(data, i, value);
    case Dtype::i32:
      return put(data, i, static_cast<int32_t>(value));
    default:
      return put(data, i, static_cast<int8_t>(value));
  }
}

// A minimum or maximum is a NaN if either operand is.
template <typename T>
T combine(RedOp op, T a, T b) {
  if ((op == RedOp::min || op == RedOp::max) && (a != a || b != b)) return a != a ? a : b;
  switch (op) {
    case RedOp::prod:
      return a * b;
    case RedOp::min:
      return b < a ? b : a;
    case RedOp::max:
      return b > a ? b : a;
    default:
      return a + b;
  }
}

int64_t combine_wrapping(RedOp op, int64_t a, int64_t b) {
  if (op == RedOp::min || op == RedOp::max) return combine(op, a, b);
  return static_cast<int64_t>(combine(op, static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
}

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

template <typename S>
void reduce_floats(Dtype dtype, RedOp op, const std::vector<Bytes>& inputs, int64_t count, Bytes& out) {
  S inverse = S{1} / static_cast<S>(inputs.size());
  for (int64_t i = 0; i < count; ++i) {
    S sum = static_cast<S>(load_float(dtype, inputs[0].data(), i));
    for (size_t r = 1; r < inputs.size(); ++r)
      sum = combine(op, sum, static_cast<S>(load_float(dtype, inputs[r].data(), i)));
    store_float(dtype, out.data(), i, op == RedOp::avg ? sum * inverse : sum);
  }
}

}  // namespace

Bytes make_input(Dtype dtype, Pattern pattern, int rank, int64_t count, uint64_t seed, int64_t begin) {
  Bytes data(static_cast<size_t>(count * dtype_bytes(dtype)));
  for (int64_t at = 0; at < count; ++at) {
    const int64_t i = begin + at;
    uint64_t random = mix(seed * 1000003 + static_cast<uint64_t>(rank) * 7919 + static_cast<uint64_t>(i));
    int64_t small = static_cast<int64_t>(random % 3) + (random % 17 == 0 ? 1 : 0);
    if (is_float(dtype)) {
      const bool nan = pattern == Pattern::nans && i % 3 == 0 && (i / 3 + rank) % 5 == 0;
      store_float(dtype, data.data(), at,
                  nan                        ? std::nan("")
                  : pattern == Pattern::real ? (static_cast<double>(random >> 11) / (1ll << 52) - 1.0) *
                                                   std::ldexp(1.0, static_cast<int>(random % 7) - 3)
                                             : static_cast<double>(small) - (random % 2 ? 0 : 1));
    } else {
      store_int(dtype, data.data(), at, pattern == Pattern::edge ? static_cast<int64_t>(random) : small);
    }
  }
  return data;
}

Bytes reduce_in_rank_order(Dtype dtype, RedOp op, const std::vector<Bytes>& inputs) {
  Bytes out(inputs[0].size());
  int64_t count = static_cast<int64_t>(out.size()) / dtype_bytes(dtype);
  if (dtype == Dtype::f64)
    reduce_floats<double>(dtype, op, inputs, count, out);
  else if (is_float(dtype))
    reduce_floats<float>(dtype, op, inputs, count, out);
  else {
    for (int64_t i = 0; i < count; ++i) {
      int64_t sum = load_int(dtype, inputs[0].data(), i);
      for (size_t r = 1; r < inputs.size(); ++r) sum = combine_wrapping(op, sum, load_int(dtype, inputs[r].data(), i));
      store_int(dtype, out.data(), i, op == RedOp::avg ? sum / static_cast<int64_t>(inputs.size()) : sum);
    }
  }
  return out;
}

int64_t send_count(const CollCall& call, int rank, int size) {
  switch (call.kind) {
    case CollKind::all_reduce:
    case CollKind::reduce:
    case CollKind::all_gather:
    case CollKind::gather:
      return call.count;
    case CollKind::reduce_scatter:
    case CollKind::all_to_all:
      return call.count * size;
    case CollKind::broadcast:
      return rank == call.root ? call.count : -1;
    case CollKind::scatter:
      return rank == call.root ? call.count * size : -1;
    default:
      return -1;
  }
}

int64_t recv_count(const CollCall& call, int rank, int size) {
  switch (call.kind) {
    case CollKind::all_reduce:
    case CollKind::broadcast:
    case CollKind::reduce_scatter:
    case CollKind::scatter:
      return call.count;
    case CollKind::all_gather:
    case CollKind::all_to_all:
      return call.count * size;
    case CollKind::reduce:
      return rank == call.root ? call.count : -1;
    case CollKind::gather:
      return rank == call.root ? call.count * size : -1;
    default:
      return -1;
  }
}

Bytes expected(const CollCall& call, int rank, int size, const Inputs& inputs) {
  const auto of_all = [&](int64_t begin) {
    std::vector<Bytes> parts;
    for (int r = 0; r < size; ++r) parts.push_back(inputs(r, begin, call.count));
    return parts;
  };
  const auto joined = [](const std::vector<Bytes>& parts) {
    Bytes out;
    for (const Bytes& part : parts) out.insert(out.end(), part.begin(), part.end());
    return out;
  };
  const int64_t slice = rank * call.count;
  switch (call.kind) {
    case CollKind::all_reduce:
    case CollKind::reduce:
      return reduce_in_rank_order(call.dtype, call.redop, of_all(0));
    case CollKind::reduce_scatter:
      return reduce_in_rank_order(call.dtype, call.redop, of_all(slice));
    case CollKind::broadcast:
      return inputs(call.root, 0, call.count);
    case CollKind::scatter:
      return inputs(call.root, slice, call.count);
    case CollKind::all_gather:
    case CollKind::gather:
      return joined(of_all(0));
    case CollKind::all_to_all:
      return joined(of_all(slice));
    default:
      return {};
  }
}

std::string compare(Dtype dtype, const Bytes& want, const char* got, double tolerance) {
  if (want.empty() || std::memcmp(want.data(), got, want.size()) == 0) return "";
  int64_t item = dtype_bytes(dtype), count = static_cast<int64_t>(want.size()) / item;
  for (int64_t i = 0; i < count; ++i) {
    if (std::memcmp(want.data() + i * item, got + i * item, static_cast<size_t>(item)) == 0) continue;
    if (!is_float(dtype))
      return fmt::format("[{}] is {}, not {}", i, load_int(dtype, got, i), load_int(dtype, want.data(), i));
    double a = load_float(dtype, want.data(), i), b = load_float(dtype, got, i);
    if (std::isnan(a) && std::isnan(b)) continue;
    if (tolerance > 0 && std::fabs(a - b) <= tolerance * std::max(std::fabs(a), std::fabs(b))) continue;
    return fmt::format("[{}] is {:.9g}, not {:.9g}", i, b, a);
  }
  return "";
}

}  // namespace prun::testing
