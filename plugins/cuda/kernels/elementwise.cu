// add, mul, scale, cast, copy and fill, for every number type, because level 3 programs also count in integers. The
// result may overwrite an operand.
#include <bit>

#include "pointwise.cuh"

namespace prun::cuda {
namespace {

// Converts a number. From float to integer it truncates as C++ does, clamps values out of range and maps NaN to 0.
template <class To, class From>
__host__ __device__ To converted(From x) {
  if constexpr (std::is_same_v<To, bf16>) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    constexpr To kLow = std::numeric_limits<To>::min(), kHigh = std::numeric_limits<To>::max();
    if (x != x) return 0;
    return x <= static_cast<From>(kLow) ? kLow : x >= static_cast<From>(kHigh) ? kHigh : static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

struct Sum {
  template <class W>
  __device__ void operator()(const W* x, W* y) const {
    y[0] = x[0] + x[1];
  }
};
struct Product {
  template <class W>
  __device__ void operator()(const W* x, W* y) const {
    y[0] = x[0] * x[1];
  }
};
template <class Factor>
struct Scaled {
  Factor factor;
  template <class W>
  __device__ void operator()(const W* x, W* y) const {
    y[0] = converted<W>(static_cast<Factor>(x[0]) * factor);
  }
};
struct Same {
  template <class W>
  __device__ void operator()(const W* x, W* y) const {
    y[0] = x[0];
  }
};
template <class T>
struct Constant {
  T value;
  __device__ void operator()(const T*, T* y) const { y[0] = value; }
};

template <class F>
std::unique_ptr<Kernel> make_pair(const OpView& view) {
  return with_number(view.read(0).dtype, [&]<class T>() { return pointwise_op<T, 2, 1>(view, F{}); });
}

std::unique_ptr<Kernel> make_scale(const OpView& view) {
  return with_number(view.read(0).dtype, [&]<class T>() {
    using Factor = std::conditional_t<std::is_integral_v<T>, double, Wide<T>>;
    return pointwise_op<T, 1, 1>(view, Scaled<Factor>{static_cast<Factor>(view.number("factor", 1))});
  });
}

// Casts between f32 and bf16, which have most of a program's bytes.
constexpr int kCastThreads = 256, kCastPack = 4, kCastSteps = 4;

template <class From, class To>
__global__ void __launch_bounds__(kCastThreads, kStreamingBlocks)
    cast_floats(const From* x, To* y, int64_t count, int64_t packs) {
  const int64_t first = int64_t{blockIdx.x} * kCastThreads * kCastSteps + threadIdx.x;
  Pack<From, kCastPack> loaded[kCastSteps];
#pragma unroll
  for (int step = 0; step < kCastSteps; ++step) {
    const int64_t pack = first + step * kCastThreads;
    if (pack < packs) loaded[step] = reinterpret_cast<const Pack<From, kCastPack>*>(x)[pack];
  }
#pragma unroll
  for (int step = 0; step < kCastSteps; ++step) {
    const int64_t pack = first + step * kCastThreads;
    if (pack >= packs) break;
    float wide[kCastPack];
#pragma unroll
    for (int i = 0; i < kCastPack; ++i) wide[i] = loaded[step].wide(i);
    store<kCastPack>(y + pack * kCastPack, wide);
  }
  const int64_t thread = int64_t{blockIdx.x} * kCastThreads + threadIdx.x;
#pragma unroll 1
  for (int64_t i = packs * kCastPack + thread; i < count; i += int64_t{gridDim.x} * kCastThreads)
    y[i] = narrow<To>(widen(x[i]));
}

template <class To>
__device__ void cast_to(const void* x, int from, int64_t i, To* y) {
  if (from == PRUN_F64) y[i] = converted<To>(static_cast<const double*>(x)[i]);
  if (from == PRUN_F32) y[i] = converted<To>(static_cast<const float*>(x)[i]);
  if (from == PRUN_BF16) y[i] = converted<To>(widen(static_cast<const bf16*>(x)[i]));
  if (from == PRUN_I64) y[i] = converted<To>(static_cast<const int64_t*>(x)[i]);
  if (from == PRUN_I32) y[i] = converted<To>(static_cast<const int32_t*>(x)[i]);
}

// Casts between any types. Such tensors are counters, so one kernel serves all types.
__global__ void cast_numbers(const void* x, int from, void* y, int to, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    if (to == PRUN_F64) cast_to(x, from, i, static_cast<double*>(y));
    if (to == PRUN_F32) cast_to(x, from, i, static_cast<float*>(y));
    if (to == PRUN_BF16) cast_to(x, from, i, static_cast<bf16*>(y));
    if (to == PRUN_I64) cast_to(x, from, i, static_cast<int64_t*>(y));
    if (to == PRUN_I32) cast_to(x, from, i, static_cast<int32_t*>(y));
  }
}

template <class From, class To>
std::unique_ptr<Kernel> make_float_cast(const OpView& view) {
  const From* x = view.in<From>(0);
  To* y = view.out<To>(0);
  const int64_t count = view.write(0).count(), packs = aligned(x, y) ? count / kCastPack : 0;
  const unsigned blocks = blocks_for(count, kCastThreads * kCastSteps * kCastPack, INT32_MAX);
  return kernel_of(
      [=](cudaStream_t stream) { launch(cast_floats<From, To>, blocks, kCastThreads, 0, stream, x, y, count, packs); });
}

std::unique_ptr<Kernel> make_cast(const OpView& view) {
  const Tensor x = view.read(0), y = view.write(0);
  view.expect_count(x, y.count());
  if (x.dtype == PRUN_F32 && y.dtype == PRUN_BF16) return make_float_cast<float, bf16>(view);
  if (x.dtype == PRUN_BF16 && y.dtype == PRUN_F32) return make_float_cast<bf16, float>(view);
  return kernel_of(
      [from = x.ptr, from_type = x.dtype, to = y.ptr, to_type = y.dtype, count = y.count()](cudaStream_t stream) {
        launch(cast_numbers, blocks_for(count, 256), 256, 0, stream, from, from_type, to, to_type, count);
      });
}

// copy and fill treat numbers as bits.
template <size_t bytes>
using Bits =
    std::conditional_t<bytes == 8, uint64_t,
                       std::conditional_t<bytes == 4, uint32_t, std::conditional_t<bytes == 2, uint16_t, uint8_t>>>;

template <size_t bytes>
std::unique_ptr<Kernel> copied(const Tensor& x, const Tensor& y) {
  using T = Bits<bytes>;
  const Streams<T, 1, 1> streams{{static_cast<const T*>(x.ptr)}, {static_cast<T*>(y.ptr)}};
  return pointwise_kernel(streams, y.count(), Same{});
}

std::unique_ptr<Kernel> make_copy(const OpView& view) {
  const Tensor x = view.read(0), y = view.write(0);
  view.expect_count(x, y.count());
  if (x.dtype != y.dtype) no_kernel_for(y.dtype);
  if (x.ptr == y.ptr) return kernel_of([](cudaStream_t) {});
  switch (dtype_bytes(x.dtype)) {
    case 8:
      return copied<8>(x, y);
    case 4:
      return copied<4>(x, y);
    default:
      return copied<2>(x, y);
  }
}

std::unique_ptr<Kernel> make_fill(const OpView& view) {
  const Tensor y = view.write(0);
  return with_number(y.dtype, [&]<class Number>() {
    using T = Bits<sizeof(Number)>;
    const Constant<T> constant{std::bit_cast<T>(converted<Number>(view.number("value")))};
    return pointwise_kernel(Streams<T, 0, 1>{{}, {static_cast<T*>(y.ptr)}}, y.count(), constant);
  });
}

// Accepts all number types, including f64.
std::string refuses(const OpView& view) {
  for (size_t i = 0; i < view.reads() + view.writes(); ++i) {
    const int dtype = i < view.reads() ? view.read(i).dtype : view.write(i - view.reads()).dtype;
    if (dtype != PRUN_F64 && dtype != PRUN_F32 && dtype != PRUN_BF16 && dtype != PRUN_I64 && dtype != PRUN_I32)
      return "it takes f64, f32, bf16, i64 and i32";
  }
  return "";
}

const KernelFamily kFamily = {{"add", make_pair<Sum>, nullptr, refuses}, {"mul", make_pair<Product>, nullptr, refuses},
                              {"scale", make_scale, nullptr, refuses},   {"cast", make_cast, nullptr, refuses},
                              {"copy", make_copy, nullptr, refuses},     {"fill", make_fill, nullptr, refuses}};

}  // namespace
}  // namespace prun::cuda
