// linear and its two gradients: oneDNN products, and the bias gradient as column sums of our own; the bias alone, for a
// product that is reduced over ranks first; and the products with a gelu of devices that compute the two as one, here
// in two passes.
#include <fmt/format.h>

#include "device/cpu/gemm.h"
#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/simd.h"
#include "device/cpu/vector_math.h"

namespace prun::cpu {
namespace {

Activation activation_of(const Attrs& attrs) {
  const std::string act = attrs.text("act");
  if (act == "relu") return Activation::relu;
  if (act == "gelu") return attrs.text("approximate", "tanh") == "none" ? Activation::gelu_erf : Activation::gelu_tanh;
  PRUN_CHECK(act.empty(), act);
  return Activation::none;
}

bool transposed(const OpView& view) { return view.attrs().integer("transpose") != 0; }

GemmShape linear_shape(const OpView& view) {
  const Tensor &x = view.read(0), &w = view.read(1), &y = view.write(0);
  GemmShape s;
  s.m = row_count(x.shape);
  s.k = last_dim(x.shape);
  s.n = last_dim(y.shape);
  s.transpose_b = transposed(view);
  s.input = x.dtype;
  s.output = y.dtype;
  s.bias = view.reads() > 2;
  s.activation = activation_of(view.attrs());
  s.threads = view.threads();
  view.expect_count(w, s.k * s.n);
  view.expect_count(y, s.m * s.n);
  if (s.bias) view.expect_count(view.read(2), s.n);
  return s;
}

// dx [rows, K] = dy [rows, N] · wᵀ, w stored [K, N] unless the forward op was transposed.
GemmShape linear_dx_shape(const OpView& view) {
  const Tensor &dy = view.read(0), &w = view.read(1), &dx = view.write(0);
  GemmShape s;
  s.m = row_count(dy.shape);
  s.k = last_dim(dy.shape);
  s.n = last_dim(dx.shape);
  s.transpose_b = !transposed(view);
  s.input = dy.dtype;
  s.output = dx.dtype;
  s.threads = view.threads();
  view.expect_count(w, s.k * s.n);
  view.expect_count(dx, s.m * s.n);
  return s;
}

// dw [K, N] = xᵀ·dy, or [N, K] = dyᵀ·x: the first operand is always the transposed one.
GemmShape linear_dw_shape(const OpView& view) {
  const Tensor &x = view.read(0), &dy = view.read(1), &dw = view.write(0);
  const bool swap = transposed(view);
  GemmShape s;
  s.m = last_dim(swap ? dy.shape : x.shape);
  s.n = last_dim(swap ? x.shape : dy.shape);
  s.k = row_count(x.shape);
  s.transpose_a = true;
  s.input = x.dtype;
  s.output = dw.dtype;
  s.threads = view.threads();
  PRUN_CHECK(row_count(dy.shape) == s.k, fmt::format("x {} dy {}", shape_text(x.shape), shape_text(dy.shape)));
  view.expect_count(dw, s.m * s.n);
  if (view.writes() > 1) view.expect_count(view.write(1), last_dim(dy.shape));
  return s;
}

const void* data_of(const OpView& view, size_t read) {
  return view.read(read).dtype == Dtype::f32 ? static_cast<const void*>(view.in<float>(read)) : view.in<bf16>(read);
}
void* result_of(const OpView& view, size_t write) {
  return view.write(write).dtype == Dtype::f32 ? static_cast<void*>(view.out<float>(write)) : view.out<bf16>(write);
}

// sums[j] = Σ over rows of dy[row][begin + j], width <= kColumns. Blocks of rows keep the rounding error of a long
// sum small; their order depends on the sizes only.
constexpr int64_t kColumns = 64;
template <class T>
PRUN_CLONES void column_sums(const T* dy, int64_t rows, int64_t stride, int64_t begin, int64_t width, float* sums) {
  constexpr int64_t kBlock = 32;
  float total[kColumns] = {};
  for (int64_t first = 0; first < rows; first += kBlock) {
    float block[kColumns] = {};
    const int64_t last = first + kBlock < rows ? first + kBlock : rows;
    for (int64_t row = first; row < last; ++row) {
      const T* from = dy + row * stride + begin;
      if (width == kColumns) {
#pragma omp simd
        for (int64_t j = 0; j < kColumns; ++j) block[j] += load(from[j]);
      } else {
#pragma omp simd
        for (int64_t j = 0; j < width; ++j) block[j] += load(from[j]);
      }
    }
#pragma omp simd
    for (int64_t j = 0; j < kColumns; ++j) total[j] += block[j];
  }
  for (int64_t j = 0; j < width; ++j) sums[begin + j] = total[j];
}

template <class T>
void all_column_sums(int threads, const T* dy, int64_t rows, int64_t width, float* sums) {
  parallel_for(threads, (width + kColumns - 1) / kColumns, [&](int64_t i, int) {
    column_sums(dy, rows, width, i * kColumns, std::min(kColumns, width - i * kColumns), sums);
  });
}

template <class T>
PRUN_CLONES void add_bias(const T* x, const T* b, T* y, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) store(y[row * width + j], load(x[row * width + j]) + load(b[j]));
  }
}

template <class T>
PRUN_CLONES void gelu_of(const T* pre, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(y[i], gelu_tanh_f32(load(pre[i])));
}
template <class T>
PRUN_CLONES void times_gelu_derivative(const T* pre, T* dx, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(dx[i], load(dx[i]) * gelu_tanh_derivative_f32(load(pre[i])));
}

// The product, then f(pre, result) over ranges of as many elements as the first result has.
template <class F>
std::unique_ptr<Kernel> then_each(const OpView& view, Gemm gemm, Scratch scratch, F f) {
  return kernel_of([gemm = std::move(gemm), scratch, f, n = view.write(0).count(), threads = view.threads()] {
    gemm.run();
    parallel_ranges(threads, n, f);
  });
}

std::unique_ptr<Kernel> make_linear_gelu(const OpView& view) {
  const GemmShape shape = linear_shape(view);
  view.expect_count(view.write(1), shape.m * shape.n);
  Scratch scratch = view.scratch(gemm_scratch_bytes(shape));
  Gemm gemm(shape, data_of(view, 0), data_of(view, 1), shape.bias ? data_of(view, 2) : nullptr, result_of(view, 1),
            scratch.data);
  return with_float(view.read(0).dtype, [&]<class T>() {
    return then_each(view, std::move(gemm), scratch,
                     [pre = view.out<T>(1), y = view.out<T>(0)](int64_t begin, int64_t end) {
                       gelu_of(pre + begin, y + begin, end - begin);
                     });
  });
}

std::unique_ptr<Kernel> make_linear_dx_gelu(const OpView& view) {
  const GemmShape shape = linear_dx_shape(view);
  view.expect_count(view.read(2), shape.m * shape.n);
  Scratch scratch = view.scratch(gemm_scratch_bytes(shape));
  Gemm gemm(shape, data_of(view, 0), data_of(view, 1), nullptr, result_of(view, 0), scratch.data);
  return with_float(view.read(0).dtype, [&]<class T>() {
    return then_each(view, std::move(gemm), scratch,
                     [pre = view.in<T>(2), dx = view.out<T>(0)](int64_t begin, int64_t end) {
                       times_gelu_derivative(pre + begin, dx + begin, end - begin);
                     });
  });
}

std::unique_ptr<Kernel> make_linear(const OpView& view) {
  const GemmShape shape = linear_shape(view);
  Scratch scratch = view.scratch(gemm_scratch_bytes(shape));
  Gemm gemm(shape, data_of(view, 0), data_of(view, 1), shape.bias ? data_of(view, 2) : nullptr, result_of(view, 0),
            scratch.data);
  return kernel_of([gemm = std::move(gemm), scratch] { gemm.run(); });
}

std::unique_ptr<Kernel> make_linear_dx(const OpView& view) {
  const GemmShape shape = linear_dx_shape(view);
  Scratch scratch = view.scratch(gemm_scratch_bytes(shape));
  Gemm gemm(shape, data_of(view, 0), data_of(view, 1), nullptr, result_of(view, 0), scratch.data);
  return kernel_of([gemm = std::move(gemm), scratch] { gemm.run(); });
}

std::unique_ptr<Kernel> make_linear_dw(const OpView& view) {
  const GemmShape shape = linear_dw_shape(view);
  const bool swap = transposed(view);
  Scratch scratch = view.scratch(gemm_scratch_bytes(shape));
  Gemm gemm(shape, data_of(view, swap ? 1 : 0), data_of(view, swap ? 0 : 1), nullptr, result_of(view, 0), scratch.data);
  if (view.writes() < 2) return kernel_of([gemm = std::move(gemm), scratch] { gemm.run(); });
  float* db = view.out<float>(1);
  const int64_t rows = shape.k, width = last_dim(view.read(1).shape);
  const int threads = view.threads();
  return with_float(view.read(1).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    return kernel_of([gemm = std::move(gemm), scratch, dy = view.in<T>(1), db, rows, width, threads] {
      gemm.run();
      all_column_sums(threads, dy, rows, width, db);
    });
  });
}

std::unique_ptr<Kernel> make_bias(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), width);
  view.expect_count(view.write(0), rows * width);
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    return kernel_of([x = view.in<T>(0), b = view.in<T>(1), y = view.out<T>(0), rows, width, threads = view.threads()] {
      parallel_for(threads, threads, [&](int64_t i, int) {
        const int64_t first = rows * i / threads, last = rows * (i + 1) / threads;
        add_bias(x + first * width, b, y + first * width, last - first, width);
      });
    });
  });
}

std::unique_ptr<Kernel> make_bias_grad(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  view.expect_count(view.write(0), width);
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    return kernel_of([dy = view.in<T>(0), db = view.out<float>(0), rows, width, threads = view.threads()] {
      all_column_sums(threads, dy, rows, width, db);
    });
  });
}

constexpr KernelEntry kEntries[] = {
    {"linear", make_linear, Accepts::floats, [](const OpView& v) { return gemm_scratch_bytes(linear_shape(v)); }},
    {"linear_dx", make_linear_dx, Accepts::floats,
     [](const OpView& v) { return gemm_scratch_bytes(linear_dx_shape(v)); }},
    {"linear_dw", make_linear_dw, Accepts::floats,
     [](const OpView& v) { return gemm_scratch_bytes(linear_dw_shape(v)); }},
    {"linear_gelu", make_linear_gelu, Accepts::floats,
     [](const OpView& v) { return gemm_scratch_bytes(linear_shape(v)); }},
    {"linear_dx_gelu", make_linear_dx_gelu, Accepts::floats,
     [](const OpView& v) { return gemm_scratch_bytes(linear_dx_shape(v)); }},
    {"bias", make_bias},
    {"bias_grad", make_bias_grad},
};

}  // namespace

std::span<const KernelEntry> linear_kernels() { return kEntries; }

}  // namespace prun::cpu
