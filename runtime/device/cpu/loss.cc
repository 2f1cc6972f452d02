// The losses that are sums over elements: mse, mean_square, mean, and their gradients. Sums run in f64, in chunks
// whose order depends on the size only.
#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/simd.h"

namespace prun::cpu {
namespace {

template <class T>
PRUN_CLONES double sum_squared_difference(const T* y, const T* target, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(load(y[i])) - static_cast<double>(load(target[i]));
    sum += d * d;
  }
  return sum;
}
template <class T>
PRUN_CLONES double sum_squares(const T* y, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(load(y[i])) * static_cast<double>(load(y[i]));
  return sum;
}
template <class T>
PRUN_CLONES double sum_elements(const T* y, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(load(y[i]));
  return sum;
}
template <class T>
PRUN_CLONES void scaled_difference(const T* y, const T* target, T* dy, float factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(dy[i], factor * (load(y[i]) - load(target[i])));
}
template <class T>
PRUN_CLONES void scaled(const T* y, T* dy, float factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(dy[i], factor * load(y[i]));
}

double scale_of(const OpView& view) { return view.attrs().number("scale", 1); }

std::unique_ptr<Kernel> make_mse(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    const int64_t n = view.read(0).count();
    view.expect_count(view.read(1), n);
    view.expect_count(view.write(0), 1);
    return kernel_of([y = view.in<T>(0), target = view.in<T>(1), loss = view.out<float>(0), n, scale = scale_of(view),
                      threads = view.threads()] {
      const double sum = parallel_sum(threads, n, [&](int64_t begin, int64_t end) {
        return sum_squared_difference(y + begin, target + begin, end - begin);
      });
      *loss = static_cast<float>(scale * sum);
    });
  });
}

std::unique_ptr<Kernel> make_mse_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    const int64_t n = view.read(0).count();
    view.expect_count(view.read(1), n);
    view.expect_count(view.write(0), n);
    return kernel_of([y = view.in<T>(0), target = view.in<T>(1), dy = view.out<T>(0), n,
                      factor = static_cast<float>(2 * scale_of(view)), threads = view.threads()] {
      parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
        scaled_difference(y + begin, target + begin, dy + begin, factor, end - begin);
      });
    });
  });
}

// Σ f over the elements of one tensor, times scale.
template <class T>
std::unique_ptr<Kernel> sum_kernel(const OpView& view, double (*f)(const T*, int64_t)) {
  view.expect_count(view.write(0), 1);
  return kernel_of([f, y = view.in<T>(0), loss = view.out<float>(0), n = view.read(0).count(), scale = scale_of(view),
                    threads = view.threads()] {
    const double sum = parallel_sum(threads, n, [&](int64_t begin, int64_t end) { return f(y + begin, end - begin); });
    *loss = static_cast<float>(scale * sum);
  });
}

std::unique_ptr<Kernel> make_mean_square(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return sum_kernel<T>(view, sum_squares<T>); });
}
std::unique_ptr<Kernel> make_mean(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return sum_kernel<T>(view, sum_elements<T>); });
}

std::unique_ptr<Kernel> make_mean_square_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    const int64_t n = view.read(0).count();
    view.expect_count(view.write(0), n);
    return kernel_of([y = view.in<T>(0), dy = view.out<T>(0), n, factor = static_cast<float>(2 * scale_of(view)),
                      threads = view.threads()] {
      parallel_ranges(threads, n,
                      [&](int64_t begin, int64_t end) { scaled(y + begin, dy + begin, factor, end - begin); });
    });
  });
}

// The gradient of a mean is the same for every element; y gives the shape only.
std::unique_ptr<Kernel> make_mean_grad(const OpView& view) {
  return with_float(view.write(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    return kernel_of([dy = view.out<T>(0), n = view.write(0).count(), value = static_cast<float>(scale_of(view))] {
      for (int64_t i = 0; i < n; ++i) store(dy[i], value);
    });
  });
}

constexpr KernelEntry kEntries[] = {{"mse", make_mse},
                                    {"mse_grad", make_mse_grad},
                                    {"mean_square", make_mean_square},
                                    {"mean_square_grad", make_mean_square_grad},
                                    {"mean", make_mean},
                                    {"mean_grad", make_mean_grad}};

}  // namespace

std::span<const KernelEntry> loss_kernels() { return kEntries; }

}  // namespace prun::cpu
