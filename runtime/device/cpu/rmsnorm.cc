// rmsnorm over the last dim, and its gradient; f32 inside. dgamma is summed as layernorm's is: in chunks of rows cut by
// their number alone, the same bits on any number of threads.
#include <cmath>
#include <cstring>

#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/simd.h"

namespace prun::cpu {
namespace {

template <class T>
PRUN_CLONES void forward_rows(const T* x, const T* gamma, T* y, float* rrms, int64_t rows, int64_t width, float eps) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = x + row * width;
    T* to = y + row * width;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) squares += load(from[i]) * load(from[i]);
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) store(to[i], load(from[i]) * scale * load(gamma[i]));
    rrms[row] = scale;
  }
}

// dx of some rows; adds their part of dgamma.
template <class T>
PRUN_CLONES void backward_rows(const T* x, const T* dy, const T* gamma, const float* rrms, T* dx, float* dgamma,
                               int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    const T *xr = x + row * width, *gr = dy + row * width;
    T* to = dx + row * width;
    const float scale = rrms[row];
    float along = 0;  // Σ g·γ·z
#pragma omp simd reduction(+ : along)
    for (int64_t i = 0; i < width; ++i) {
      const float product = load(gr[i]) * load(xr[i]) * scale;
      along += product * load(gamma[i]);
      dgamma[i] += product;
    }
    const float back = along / static_cast<float>(width) * scale;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) store(to[i], (load(gr[i]) * load(gamma[i]) - load(xr[i]) * back) * scale);
  }
}

template <class T>
std::unique_ptr<Kernel> forward(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), width);
  view.expect_count(view.write(0), rows * width);
  view.expect_count(view.write(1), rows);
  return kernel_of([x = view.in<T>(0), gamma = view.in<T>(1), y = view.out<T>(0), rrms = view.out<float>(1), rows,
                    width, threads = view.threads(), eps = static_cast<float>(view.attrs().number("eps", 1e-5))] {
    const RowChunks chunks(rows);
    parallel_for(threads, chunks.count, [&](int64_t i, int) {
      const int64_t at = chunks.first(i);
      forward_rows(x + at * width, gamma, y + at * width, rrms + at, chunks.size(i), width, eps);
    });
  });
}

int64_t scratch_bytes(int64_t rows, int64_t width) {
  return RowChunks(rows).count * width * static_cast<int64_t>(sizeof(float));
}

template <class T>
std::unique_ptr<Kernel> backward(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), rows * width);
  view.expect_count(view.read(2), width);
  view.expect_count(view.read(3), rows);
  view.expect_count(view.write(0), rows * width);
  view.expect_count(view.write(1), width);
  return kernel_of([x = view.in<T>(0), dy = view.in<T>(1), gamma = view.in<T>(2), rrms = view.in<float>(3),
                    dx = view.out<T>(0), dgamma = view.out<float>(1), rows, width, threads = view.threads(),
                    scratch = view.scratch(scratch_bytes(rows, width))] {
    float* sums = reinterpret_cast<float*>(scratch.data);
    const RowChunks chunks(rows);
    parallel_for(threads, chunks.count, [&](int64_t i, int) {
      const int64_t at = chunks.first(i);
      std::memset(sums + i * width, 0, static_cast<size_t>(width) * sizeof(float));
      backward_rows(x + at * width, dy + at * width, gamma, rrms + at, dx + at * width, sums + i * width,
                    chunks.size(i), width);
    });
    std::fill(dgamma, dgamma + width, 0.0f);
    for (int64_t i = 0; i < chunks.count; ++i)
      for (int64_t j = 0; j < width; ++j) dgamma[j] += sums[i * width + j];
  });
}

std::unique_ptr<Kernel> make_forward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return forward<T>(view); });
}
std::unique_ptr<Kernel> make_backward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return backward<T>(view); });
}
int64_t backward_workspace(const OpView& view) {
  const Shape& shape = view.read(0).shape;
  return scratch_bytes(row_count(shape), last_dim(shape));
}

constexpr KernelEntry kEntries[] = {{"rmsnorm", make_forward},
                                    {"rmsnorm_grad", make_backward, Accepts::floats, backward_workspace}};

}  // namespace

std::span<const KernelEntry> rmsnorm_kernels() { return kEntries; }

}  // namespace prun::cpu
