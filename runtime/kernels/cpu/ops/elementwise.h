// Kernels made of a function of one element, and reductions of a function over elements.
//
// The function takes and returns the type in which an element is computed, f32 for bf16. It is a lambda marked
// PRUN_INLINED, because a call through a pointer is not vectorized. One with `auto` parameters takes vectors, too.
#pragma once
#include <limits>
#include <tuple>
#include <type_traits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_group.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {

// The type in which elements of T are computed.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;

template <class T>
PRUN_INLINE Wide<T> widen(T x) {
  if constexpr (std::is_same_v<T, bf16>)
    return load(x);
  else
    return x;
}
// Converts a number. From float to integer it truncates as C++ does, clamps values out of range and maps NaN to 0.
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

// Flushes subnormal operands and results to zero in this thread during its lifetime. A moment whose gradient is always
// zero decays to subnormal numbers, which some CPUs compute a hundred times slower; the update is the same as with
// zeros.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : before_(_mm_getcsr()) { set(before_ | kResults | kOperands); }
  ~FlushSubnormals() { set(before_); }
#else
  FlushSubnormals() {}
  ~FlushSubnormals() {}
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

#if defined(__x86_64__)
 private:
  static constexpr unsigned kResults = 0x8000, kOperands = 0x0040;
  // The compiler moves no loads and stores across it.
  static void set(unsigned control) {
    asm volatile("" ::: "memory");
    _mm_setcsr(control);
    asm volatile("" ::: "memory");
  }
  unsigned before_;
#endif
};

// Return the first byte of a tensor of any number type.
inline const std::byte* bytes_in(const OpView& view, size_t read) {
  return with_number(view.read(read).dtype,
                     [&]<class T>() { return reinterpret_cast<const std::byte*>(view.in<T>(read)); });
}
inline std::byte* bytes_out(const OpView& view, size_t write) {
  return with_number(view.write(write).dtype,
                     [&]<class T>() { return reinterpret_cast<std::byte*>(view.out<T>(write)); });
}

template <class T>
concept FloatOrBf16 = std::is_same_v<T, float> || std::is_same_v<T, bf16>;

template <class F, class Y, class... X>
PRUN_CLONES static void map_elements(F f, int64_t n, Y* y, const X*... x) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) narrow(y[i], f(widen(x[i])...));
}

// A function with this member accepts a Group in place of a vector.
template <class F>
concept OfGroups = requires {
  F::kOfGroups;
};

// Computes y[i] = f(x[i]...) for n elements, a few vectors at a time. If all arrays are bf16, even and odd elements are
// separate vectors. Prefetches the operands.
template <int lanes, class F, class Y, class... X>
PRUN_INLINE void map_lanes(const F& f, int64_t n, Y* y, const X*... x) {
  constexpr bool kGroups = OfGroups<F> && lanes == 16;  // shorter vectors have too few registers
  constexpr int kSome = lanes == 16 ? 4 : 2;
  constexpr bool kPairs = std::is_same_v<Y, bf16> && (... && std::is_same_v<X, bf16>);
  using Some = Group<Floats<lanes>, kSome>;
  const auto load = []<class T>(const T* from) PRUN_INLINED {
    return Some::of([=](int k) PRUN_INLINED {
      if constexpr (kPairs)
        return k % 2 == 0 ? load_even<lanes>(from + k * lanes) : load_odd<lanes>(from + (k - 1) * lanes);
      else
        return load_lanes<lanes>(from + k * lanes);
    });
  };
  const auto of_some = [&](const auto&... all) PRUN_INLINED {
    if constexpr (kGroups)
      return f(all...);
    else
      return Some::of([&](int k) PRUN_INLINED { return f(all.v[k]...); });
  };
  int64_t done = 0;
  for (; done + kSome * lanes <= n; done += kSome * lanes) {
    (prefetch_ahead<kSome * lanes>(x + done), ...);
    const Some all = of_some(load(x + done)...);
#pragma GCC unroll 4
    for (int k = 0; k < kSome; k += kPairs ? 2 : 1) {
      if constexpr (kPairs)
        store_even_odd<lanes>(y + done + k * lanes, all.v[k], all.v[k + 1]);
      else
        store_lanes<lanes>(y + done + k * lanes, all.v[k]);
    }
  }
  if constexpr (kPairs) {
    for (; done + 2 * lanes <= n; done += 2 * lanes)
      store_even_odd<lanes>(y + done, f(load_even<lanes>(x + done)...), f(load_odd<lanes>(x + done)...));
  }
  for_lanes<lanes>(n - done, [=](auto at) PRUN_INLINED { at.store(y + done, f(at.load(x + done)...)); });
}

// Computes y[i] = f(x[i]...); y may be the memory of an x.
template <class F, class Y, class... X>
void map_range(F f, int64_t n, Y* y, const X*... x) {
  if constexpr (sizeof...(X) > 0 && FloatOrBf16<Y> && (... && FloatOrBf16<X>))
    with_lanes([=]<int lanes>() PRUN_INLINED { map_lanes<lanes>(f, n, y, x...); });
  else
    map_elements(f, n, y, x...);
}

// Computes sum[i] = a[i] + b[i] for `count` floats, on `threads` threads; sum may be the memory of a or b.
inline void add_floats(int threads, const float* a, const float* b, float* sum, int64_t count) {
  parallel_ranges(threads, count, [=](int64_t begin, int64_t end) {
    map_range([](auto x, auto y) PRUN_INLINED { return x + y; }, end - begin, sum + begin, a + begin, b + begin);
  });
}

// Returns Σ f(x[i]...) in f64, for floats or bf16; f takes vectors of doubles and returns 0 if all operands are 0.
//
// Written with vectors, because GCC 12 compiles `#pragma omp simd` inside a lambda to scalar code.
template <class F, class... X>
double sum_range(F f, int64_t n, const X*... x) {
  static_assert((... && FloatOrBf16<X>));
  double all = 0;
  with_lanes([=, &all]<int lanes>() PRUN_INLINED {
    Doubles<lanes> sums[2] = {};  // one for each half of the vectors, to hide the latency of additions
    for_lanes<lanes>(n, [=, &sums](const auto& at) PRUN_INLINED {
      sums[0] += f(lower_doubles<lanes>(at.load(x))...);
      sums[1] += f(upper_doubles<lanes>(at.load(x))...);
    });
    sums[0] += sums[1];
    double sum = 0;
    for (int i = 0; i < lanes / 2; ++i) sum += sums[0][i];
    all = sum;
  });
  return all;
}

// Returns the op's first reads, which must have n elements each.
template <class... X, size_t... i>
std::tuple<const X*...> inputs(const OpView& view, [[maybe_unused]] int64_t n, std::index_sequence<i...>) {
  (view.expect_count(view.read(i), n), ...);
  return {view.in<X>(i)...};
}

// Makes a kernel whose write 0, of Y, is f of its reads, of X..., element by element.
template <class Y, class... X, class F>
std::unique_ptr<Kernel> map_kernel(const OpView& view, F f) {
  const int64_t n = view.write(0).count();
  return kernel_of([f, n, threads = view.threads(), y = view.out<Y>(0),
                    all = inputs<X...>(view, n, std::index_sequence_for<X...>{})] {
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
      std::apply([&](const X*... x) { map_range(f, end - begin, y + begin, (x + begin)...); }, all);
    });
  });
}

// Makes a kernel whose write 0 is `scale` times the sum of f over its reads, of X...
template <class... X, class F>
std::unique_ptr<Kernel> sum_kernel(const OpView& view, double scale, F f) {
  const int64_t n = view.read(0).count();
  view.expect_count(view.write(0), 1);
  return kernel_of([f, n, scale, threads = view.threads(), loss = view.out<float>(0),
                    all = inputs<X...>(view, n, std::index_sequence_for<X...>{})] {
    const double sum = parallel_sum(threads, n, [&](int64_t begin, int64_t end) {
      return std::apply([&](const X*... x) { return sum_range(f, end - begin, (x + begin)...); }, all);
    });
    *loss = static_cast<float>(scale * sum);
  });
}

}  // namespace prun::cpu
