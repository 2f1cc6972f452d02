// rmsnorm over the last dim, and its gradient; f32 inside. dgamma is summed as layernorm's is: in chunks of rows cut by
// their number alone, the same bits on any number of threads.
#include <cmath>
#include <cstring>

#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/residual.h"
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

// With `added` the rows are those of a sum, which is made here.
template <class T, bool added>
std::unique_ptr<Kernel> forward(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  const size_t more = added ? 1 : 0;
  if (added) view.expect_count(view.read(1), rows * width);
  view.expect_count(view.read(1 + more), width);
  for (size_t i = 0; i <= more; ++i) view.expect_count(view.write(i), rows * width);
  view.expect_count(view.write(1 + more), rows);
  return kernel_of([x = view.in<T>(0), residual = added ? view.in<T>(1) : nullptr, gamma = view.in<T>(1 + more),
                    y = view.out<T>(0), sum = added ? view.out<T>(1) : nullptr, rrms = view.out<float>(1 + more), rows,
                    width, threads = view.threads(), eps = static_cast<float>(view.attrs().number("eps", 1e-5))] {
    const auto normalize = [&](const T* of, int64_t at, int64_t count) {
      forward_rows(of + at * width, gamma, y + at * width, rrms + at, count, width, eps);
    };
    const RowChunks chunks(rows);
    parallel_for(threads, chunks.count, [&](int64_t i, int) {
      if constexpr (!added) return normalize(x, chunks.first(i), chunks.size(i));
      few_rows<T>(chunks.first(i), chunks.size(i), width, [&](int64_t at, int64_t count) {
        add_elements(x + at * width, residual + at * width, sum + at * width, count * width);
        normalize(sum, at, count);
      });
    });
  });
}

int64_t scratch_bytes(int64_t rows, int64_t width) {
  return RowChunks(rows).count * width * static_cast<int64_t>(sizeof(float));
}

template <class T, bool added>
std::unique_ptr<Kernel> backward(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), rows * width);
  view.expect_count(view.read(2), width);
  view.expect_count(view.read(3), rows);
  if (added) view.expect_count(view.read(4), rows * width);
  view.expect_count(view.write(0), rows * width);
  view.expect_count(view.write(1), width);
  return kernel_of([x = view.in<T>(0), dy = view.in<T>(1), gamma = view.in<T>(2), rrms = view.in<float>(3),
                    other = added ? view.in<T>(4) : nullptr, dx = view.out<T>(0), dgamma = view.out<float>(1), rows,
                    width, threads = view.threads(), scratch = view.scratch(scratch_bytes(rows, width))] {
    float* sums = reinterpret_cast<float*>(scratch.data);
    const RowChunks chunks(rows);
    parallel_for(threads, chunks.count, [&](int64_t i, int) {
      float* part = sums + i * width;
      std::memset(part, 0, static_cast<size_t>(width) * sizeof(float));
      const auto derive = [&](int64_t at, int64_t count) {
        backward_rows(x + at * width, dy + at * width, gamma, rrms + at, dx + at * width, part, count, width);
      };
      if constexpr (!added) return derive(chunks.first(i), chunks.size(i));
      few_rows<T>(chunks.first(i), chunks.size(i), width, [&](int64_t at, int64_t count) {
        derive(at, count);
        add_elements(other + at * width, dx + at * width, dx + at * width, count * width);
      });
    });
    std::fill(dgamma, dgamma + width, 0.0f);
    for (int64_t i = 0; i < chunks.count; ++i)
      for (int64_t j = 0; j < width; ++j) dgamma[j] += sums[i * width + j];
  });
}

template <bool added>
std::unique_ptr<Kernel> make_forward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return forward<T, added>(view); });
}
template <bool added>
std::unique_ptr<Kernel> make_backward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return backward<T, added>(view); });
}
int64_t backward_workspace(const OpView& view) {
  const Shape& shape = view.read(0).shape;
  return scratch_bytes(row_count(shape), last_dim(shape));
}

constexpr KernelEntry kEntries[] = {{"rmsnorm", make_forward<false>},
                                    {"rmsnorm_grad", make_backward<false>, Accepts::floats, backward_workspace},
                                    {"add_rmsnorm", make_forward<true>},
                                    {"rmsnorm_grad_add", make_backward<true>, Accepts::floats, backward_workspace}};

}  // namespace

std::span<const KernelEntry> rmsnorm_kernels() { return kEntries; }

}  // namespace prun::cpu
