// Detects NaNs and infinities in tensors by their bits, because the compiler may assume that arithmetic has neither.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <type_traits>
#include <vector>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace prun::cpu {
namespace {

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;

// The bits of +infinity; larger values, without the sign, are NaNs.
template <class T>
constexpr BitsOf<T> kInfinity = sizeof(T) == 8   ? static_cast<BitsOf<T>>(0x7ff0000000000000)
                                : sizeof(T) == 4 ? static_cast<BitsOf<T>>(0x7f800000)
                                                 : static_cast<BitsOf<T>>(0x7f80);

// Returns 1 for a NaN, 2 for an infinity, 3 for both, otherwise 0.
template <class T>
PRUN_CLONES int32_t kinds_in(const T* x, int64_t n) {
  int32_t nans = 0, infinities = 0;
#pragma omp simd reduction(| : nans, infinities)
  for (int64_t i = 0; i < n; ++i) {
    const BitsOf<T> size = static_cast<BitsOf<T>>(__builtin_bit_cast(BitsOf<T>, x[i]) << 1) >> 1;
    nans |= size > kInfinity<T>;
    infinities |= size == kInfinity<T>;
  }
  return nans | infinities << 1;
}

struct Checked {
  const std::byte* data;
  int64_t count, size;  // elements, and the bytes of one
  int32_t (*kinds)(const std::byte*, int64_t);
};

template <class T>
Checked checked(const OpView& view, size_t i) {
  return {reinterpret_cast<const std::byte*>(view.in<T>(i)), view.read(i).count(), int64_t{sizeof(T)},
          [](const std::byte* data, int64_t n) { return kinds_in(reinterpret_cast<const T*>(data), n); }};
}

std::unique_ptr<Kernel> make_check_finite(const OpView& view) {
  view.expect_count(view.write(0), 1);
  int32_t* const flags = view.out<int32_t>(0);
  if (view.attrs().has("root") && view.share("axis").index != view.attrs().integer("root"))
    return kernel_of([flags] { *flags = 0; });
  const bool counted = view.attrs().integer("counted") != 0;
  const size_t checked_reads = view.reads() - (counted ? 1 : 0);
  const int64_t* const counts = counted ? view.in<int64_t>(checked_reads) : nullptr;
  const int64_t members = counted ? view.read(checked_reads).count() : 0;
  std::vector<Checked> tensors;
  for (size_t i = 0; i < checked_reads; ++i)
    tensors.push_back(view.read(i).dtype == Dtype::f64
                          ? checked<double>(view, i)
                          : with_float(view.read(i).dtype, [&]<class T>() { return checked<T>(view, i); }));
  const int32_t reported = view.attrs().integer("infinite") != 0 ? 1 : 3;
  return kernel_of([tensors, reported, flags, counts, members, threads = view.threads()] {
    int32_t all = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Checked& t = tensors[i];
      const int64_t count = counts != nullptr && i == 0
                                ? std::min(t.count, std::accumulate(counts, counts + members, int64_t{0}))
                                : t.count;
      std::atomic<int32_t> found = 0;
      parallel_ranges(threads, count, [&](int64_t begin, int64_t end) {
        const int32_t kinds = t.kinds(t.data + begin * t.size, end - begin);
        if (kinds != 0) found.fetch_or(kinds, std::memory_order_relaxed);
      });
      all |= (found.load() & reported) << (2 * i);
    }
    *flags = all;
  });
}

}  // namespace

const Family check_finite_kernels = {{"check_finite", make_check_finite, Accepts::numbers}};

}  // namespace prun::cpu
