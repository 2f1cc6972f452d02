// The losses that are reductions over elements: mse, mean_square, mean, and their gradients. They accumulate in f64, in
// chunks whose order depends on the size only.
#include "kernels/cpu/ops/elementwise.h"

namespace prun::cpu {
namespace {

double scale_of(const OpView& view) { return view.attrs().number("scale", 1); }

constexpr auto kSquaredDifference = [](const auto& y, const auto& target) PRUN_INLINED {
  const auto d = y - target;
  return d * d;
};
constexpr auto kSquare = [](const auto& y) PRUN_INLINED { return y * y; };
constexpr auto kElement = [](const auto& y) PRUN_INLINED { return y; };

template <class T>
std::unique_ptr<Kernel> mse_grad(const OpView& view) {
  return map_kernel<T, T, T>(view, [factor = static_cast<float>(2 * scale_of(view))](auto y, auto target)
                                       PRUN_INLINED { return factor * (y - target); });
}
template <class T>
std::unique_ptr<Kernel> mean_square_grad(const OpView& view) {
  return map_kernel<T, T>(
      view, [factor = static_cast<float>(2 * scale_of(view))](auto y) PRUN_INLINED { return factor * y; });
}
// The gradient of a mean is the same for every element, so only the shape of y matters.
template <class T>
std::unique_ptr<Kernel> mean_grad(const OpView& view) {
  return map_kernel<T>(view, [value = static_cast<float>(scale_of(view))]() PRUN_INLINED { return value; });
}

}  // namespace

const Family loss_kernels = {
    {"mse", PRUN_FLOAT_MAKER(read(0), sum_kernel<T, T>(view, scale_of(view), kSquaredDifference))},
    {"mse_grad", PRUN_FLOAT_MAKER(read(0), mse_grad<T>(view))},
    {"mean_square", PRUN_FLOAT_MAKER(read(0), sum_kernel<T>(view, scale_of(view), kSquare))},
    {"mean_square_grad", PRUN_FLOAT_MAKER(read(0), mean_square_grad<T>(view))},
    {"mean", PRUN_FLOAT_MAKER(read(0), sum_kernel<T>(view, scale_of(view), kElement))},
    {"mean_grad", PRUN_FLOAT_MAKER(write(0), mean_grad<T>(view))}};

}  // namespace prun::cpu
