// gelu, relu and silu_mul with their gradients: one pass, f32 inside, in place where the program wishes.
#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/simd.h"
#include "device/cpu/vector_math.h"

namespace prun::cpu {
namespace {

template <class T>
PRUN_CLONES void gelu_tanh(const T* x, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(y[i], gelu_tanh_f32(load(x[i])));
}
template <class T>
PRUN_CLONES void gelu_erf(const T* x, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(y[i], gelu_erf_f32(load(x[i])));
}
template <class T>
PRUN_CLONES void gelu_tanh_dx(const T* x, const T* dy, T* dx, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(dx[i], load(dy[i]) * gelu_tanh_derivative_f32(load(x[i])));
}
template <class T>
PRUN_CLONES void gelu_erf_dx(const T* x, const T* dy, T* dx, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(dx[i], load(dy[i]) * gelu_erf_derivative_f32(load(x[i])));
}
template <class T>
PRUN_CLONES void relu(const T* x, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float v = load(x[i]);
    store(y[i], v < 0.0f ? 0.0f : v);  // a NaN stays one
  }
}
template <class T>
PRUN_CLONES void relu_dx(const T* y, const T* dy, T* dx, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = load(dy[i]);
    store(dx[i], load(y[i]) > 0.0f ? g : 0.0f);
  }
}

template <class T>
PRUN_CLONES void silu_mul(const T* gate, const T* up, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(y[i], load(gate[i]) * sigmoid_f32(load(gate[i])) * load(up[i]));
}
template <class T>
PRUN_CLONES void silu_mul_grad(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float x = load(gate[i]), u = load(up[i]), g = load(dy[i]), s = sigmoid_f32(x);
    store(dgate[i], g * u * s * (1.0f + x * (1.0f - s)));
    store(dup[i], g * x * s);
  }
}

template <class T>
using Unary = void (*)(const T*, T*, int64_t);
template <class T>
using Binary = void (*)(const T*, const T*, T*, int64_t);

template <class T>
std::unique_ptr<Kernel> unary(const OpView& view, Unary<T> f) {
  const int64_t n = view.read(0).count();
  view.expect_count(view.write(0), n);
  return kernel_of([f, x = view.in<T>(0), y = view.out<T>(0), n, threads = view.threads()] {
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) { f(x + begin, y + begin, end - begin); });
  });
}

template <class T>
std::unique_ptr<Kernel> binary(const OpView& view, Binary<T> f) {
  const int64_t n = view.read(0).count();
  view.expect_count(view.read(1), n);
  view.expect_count(view.write(0), n);
  return kernel_of([f, a = view.in<T>(0), b = view.in<T>(1), y = view.out<T>(0), n, threads = view.threads()] {
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) { f(a + begin, b + begin, y + begin, end - begin); });
  });
}

bool exact_gelu(const OpView& view) { return view.attrs().text("approximate", "tanh") == "none"; }

std::unique_ptr<Kernel> make_gelu(const OpView& view) {
  return with_float(view.read(0).dtype,
                    [&]<class T>() { return unary<T>(view, exact_gelu(view) ? gelu_erf<T> : gelu_tanh<T>); });
}
std::unique_ptr<Kernel> make_gelu_dx(const OpView& view) {
  return with_float(view.read(0).dtype,
                    [&]<class T>() { return binary<T>(view, exact_gelu(view) ? gelu_erf_dx<T> : gelu_tanh_dx<T>); });
}
std::unique_ptr<Kernel> make_relu(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return unary<T>(view, relu<T>); });
}
std::unique_ptr<Kernel> make_relu_dx(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return binary<T>(view, relu_dx<T>); });
}

std::unique_ptr<Kernel> make_silu_mul(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return binary<T>(view, silu_mul<T>); });
}
std::unique_ptr<Kernel> make_silu_mul_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    const int64_t n = view.read(0).count();
    for (size_t i : {1, 2}) view.expect_count(view.read(i), n);
    for (size_t i : {0, 1}) view.expect_count(view.write(i), n);
    return kernel_of([gate = view.in<T>(0), up = view.in<T>(1), dy = view.in<T>(2), dgate = view.out<T>(0),
                      dup = view.out<T>(1), n, threads = view.threads()] {
      parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
        silu_mul_grad(gate + begin, up + begin, dy + begin, dgate + begin, dup + begin, end - begin);
      });
    });
  });
}

constexpr KernelEntry kEntries[] = {{"gelu", make_gelu},         {"gelu_dx", make_gelu_dx},
                                    {"relu", make_relu},         {"relu_dx", make_relu_dx},
                                    {"silu_mul", make_silu_mul}, {"silu_mul_grad", make_silu_mul_grad}};

}  // namespace

std::span<const KernelEntry> activation_kernels() { return kEntries; }

}  // namespace prun::cpu
