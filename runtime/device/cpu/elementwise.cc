// add, mul, scale, cast and copy, for every number type: level 3 programs count in whole numbers too. Operands may be
// the result's own memory.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/residual.h"
#include "device/cpu/simd.h"

namespace prun::cpu {
namespace {

// The type that arithmetic on T runs in.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;

template <class T>
PRUN_INLINE Wide<T> widen(T x) {
  if constexpr (std::is_same_v<T, bf16>)
    return load(x);
  else
    return x;
}
// To a whole number: toward zero, as C++ converts; what does not fit is clamped and a NaN is 0.
template <class To, class From>
PRUN_INLINE void narrow(To& to, From x) {
  if constexpr (std::is_same_v<To, bf16>) {
    store(to, static_cast<float>(x));
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From kHigh = static_cast<From>(std::numeric_limits<To>::max());
    to = x != x ? 0
                : (x <= kLow ? std::numeric_limits<To>::min()
                             : (x >= kHigh ? std::numeric_limits<To>::max() : static_cast<To>(x)));
  } else {
    to = static_cast<To>(x);
  }
}

template <class T>
PRUN_CLONES void add(const T* a, const T* b, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) narrow(y[i], static_cast<Wide<T>>(widen(a[i]) + widen(b[i])));
}
template <class T>
PRUN_CLONES void mul(const T* a, const T* b, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) narrow(y[i], static_cast<Wide<T>>(widen(a[i]) * widen(b[i])));
}
template <class T, class Factor>
PRUN_CLONES void scale(const T* x, T* y, Factor factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) narrow(y[i], static_cast<Factor>(widen(x[i])) * factor);
}
template <class From, class To>
PRUN_CLONES void cast(const From* x, To* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) narrow(y[i], widen(x[i]));
}

template <class T>
std::unique_ptr<Kernel> binary(const OpView& view, void (*f)(const T*, const T*, T*, int64_t)) {
  const int64_t n = view.write(0).count();
  view.expect_count(view.read(0), n);
  view.expect_count(view.read(1), n);
  return kernel_of([f, a = view.in<T>(0), b = view.in<T>(1), y = view.out<T>(0), n, threads = view.threads()] {
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) { f(a + begin, b + begin, y + begin, end - begin); });
  });
}

std::unique_ptr<Kernel> make_add(const OpView& view) {
  return with_number(view.read(0).dtype, [&]<class T>() { return binary<T>(view, add<T>); });
}
std::unique_ptr<Kernel> make_mul(const OpView& view) {
  return with_number(view.read(0).dtype, [&]<class T>() { return binary<T>(view, mul<T>); });
}

std::unique_ptr<Kernel> make_scale(const OpView& view) {
  return with_number(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    using Factor = std::conditional_t<std::is_integral_v<T>, double, Wide<T>>;
    const int64_t n = view.read(0).count();
    view.expect_count(view.write(0), n);
    return kernel_of([x = view.in<T>(0), y = view.out<T>(0), n, threads = view.threads(),
                      factor = static_cast<Factor>(view.attrs().number("factor", 1))] {
      parallel_ranges(threads, n,
                      [&](int64_t begin, int64_t end) { scale(x + begin, y + begin, factor, end - begin); });
    });
  });
}

std::unique_ptr<Kernel> make_cast(const OpView& view) {
  return with_number(view.read(0).dtype, [&]<class From>() -> std::unique_ptr<Kernel> {
    return with_number(view.write(0).dtype, [&]<class To>() -> std::unique_ptr<Kernel> {
      const int64_t n = view.read(0).count();
      view.expect_count(view.write(0), n);
      return kernel_of([x = view.in<From>(0), y = view.out<To>(0), n, threads = view.threads()] {
        parallel_ranges(threads, n, [&](int64_t begin, int64_t end) { cast(x + begin, y + begin, end - begin); });
      });
    });
  });
}

std::unique_ptr<Kernel> make_copy(const OpView& view) {
  return with_number(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    const int64_t n = view.read(0).count();
    view.expect_count(view.write(0), n);
    return kernel_of([x = view.in<T>(0), y = view.out<T>(0), n, threads = view.threads()] {
      if (x == y) return;
      parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
        std::memcpy(y + begin, x + begin, static_cast<size_t>(end - begin) * sizeof(T));
      });
    });
  });
}

constexpr KernelEntry kEntries[] = {{"add", make_add, Accepts::numbers},
                                    {"mul", make_mul, Accepts::numbers},
                                    {"scale", make_scale, Accepts::numbers},
                                    {"cast", make_cast, Accepts::numbers},
                                    {"copy", make_copy, Accepts::numbers}};

}  // namespace

template <class T>
void add_elements(const T* a, const T* b, T* y, int64_t n) {
  add(a, b, y, n);
}
template void add_elements(const float* a, const float* b, float* y, int64_t n);
template void add_elements(const bf16* a, const bf16* b, bf16* y, int64_t n);

std::span<const KernelEntry> elementwise_kernels() { return kEntries; }

}  // namespace prun::cpu
