// add, mul, scale, cast and copy for every number type, because level 3 programs also count in integers. The result may
// overwrite an operand.
#include "kernels/cpu/ops/elementwise.h"

#include <cstring>

namespace prun::cpu {
namespace {

template <class T>
std::unique_ptr<Kernel> scale(const OpView& view) {
  using Factor = std::conditional_t<std::is_integral_v<T>, double, Wide<T>>;
  return map_kernel<T, T>(view, [factor = static_cast<Factor>(view.attrs().number("factor", 1))](auto x)
                                    PRUN_INLINED { return x * factor; });
}

template <class From>
std::unique_ptr<Kernel> cast(const OpView& view) {
  return with_number(view.write(0).dtype,
                     [&]<class To>() { return map_kernel<To, From>(view, [](auto x) PRUN_INLINED { return x; }); });
}

template <class T>
std::unique_ptr<Kernel> copy(const OpView& view) {
  const int64_t n = view.read(0).count();
  view.expect_count(view.write(0), n);
  return kernel_of([x = view.in<T>(0), y = view.out<T>(0), n, threads = view.threads()] {
    if (x == y) return;
    parallel_ranges(threads, n,
                    [&](int64_t begin, int64_t end) { std::memcpy(y + begin, x + begin, (end - begin) * sizeof(T)); });
  });
}

}  // namespace

const Family elementwise_kernels = {
    {"add", PRUN_NUMBER_MAKER(read(0), map_kernel<T, T, T>(view, kAdd)), Accepts::numbers},
    {"mul", PRUN_NUMBER_MAKER(read(0), map_kernel<T, T, T>(view, [](auto a, auto b) PRUN_INLINED { return a * b; })),
     Accepts::numbers},
    {"scale", PRUN_NUMBER_MAKER(read(0), scale<T>(view)), Accepts::numbers},
    {"cast", PRUN_NUMBER_MAKER(read(0), cast<T>(view)), Accepts::numbers},
    {"copy", PRUN_NUMBER_MAKER(read(0), copy<T>(view)), Accepts::numbers}};

}  // namespace prun::cpu
