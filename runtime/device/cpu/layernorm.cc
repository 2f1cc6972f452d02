// layernorm over the last dim, and its gradient. Statistics are f32, the variance from centred values.
//
// The gradient's sums over rows (dgamma, dbeta) are cut into chunks by the number of rows alone and added in chunk
// order, so they have the same bits on any number of threads.
#include <cmath>
#include <cstring>

#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/residual.h"
#include "device/cpu/simd.h"

namespace prun::cpu {
namespace {

template <class T>
PRUN_CLONES void forward_rows(const T* x, const T* gamma, const T* beta, T* y, float* mean, float* rstd, int64_t rows,
                              int64_t width, float eps) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = x + row * width;
    T* to = y + row * width;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += load(from[i]);
    const float centre = sum / static_cast<float>(width);
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) {
      const float d = load(from[i]) - centre;
      squares += d * d;
    }
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      store(to[i], (load(from[i]) - centre) * scale * load(gamma[i]) + load(beta[i]));
    }
    mean[row] = centre;
    rstd[row] = scale;
  }
}

// dx of some rows; adds their part of dgamma and dbeta to `sums` [2][width].
template <class T>
PRUN_CLONES void backward_rows(const T* x, const T* dy, const T* gamma, const float* mean, const float* rstd, T* dx,
                               float* sums, int64_t rows, int64_t width) {
  float *dgamma = sums, *dbeta = sums + width;
  for (int64_t row = 0; row < rows; ++row) {
    const T *xr = x + row * width, *gr = dy + row * width;
    T* to = dx + row * width;
    const float centre = mean[row], scale = rstd[row];
    float along = 0, through = 0;  // Σ g·γ·x̂ and Σ g·γ
#pragma omp simd reduction(+ : along, through)
    for (int64_t i = 0; i < width; ++i) {
      const float normal = (load(xr[i]) - centre) * scale, g = load(gr[i]), weighted = g * load(gamma[i]);
      along += weighted * normal;
      through += weighted;
      dgamma[i] += g * normal;
      dbeta[i] += g;
    }
    along /= static_cast<float>(width);
    through /= static_cast<float>(width);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float normal = (load(xr[i]) - centre) * scale;
      store(to[i], (load(gr[i]) * load(gamma[i]) - through - normal * along) * scale);
    }
  }
}

// With `added` the rows are those of a sum, which is made here.
template <class T, bool added>
std::unique_ptr<Kernel> forward(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  const size_t more = added ? 1 : 0;
  if (added) view.expect_count(view.read(1), rows * width);
  view.expect_count(view.read(1 + more), width);
  view.expect_count(view.read(2 + more), width);
  for (size_t i = 0; i <= more; ++i) view.expect_count(view.write(i), rows * width);
  view.expect_count(view.write(1 + more), rows);
  view.expect_count(view.write(2 + more), rows);
  return kernel_of([x = view.in<T>(0), residual = added ? view.in<T>(1) : nullptr, gamma = view.in<T>(1 + more),
                    beta = view.in<T>(2 + more), y = view.out<T>(0), sum = added ? view.out<T>(1) : nullptr,
                    mean = view.out<float>(1 + more), rstd = view.out<float>(2 + more), rows, width,
                    threads = view.threads(), eps = static_cast<float>(view.attrs().number("eps", 1e-5))] {
    const auto normalize = [&](const T* of, int64_t at, int64_t count) {
      forward_rows(of + at * width, gamma, beta, y + at * width, mean + at, rstd + at, count, width, eps);
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

template <class T, bool added>
std::unique_ptr<Kernel> backward(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), rows * width);
  view.expect_count(view.read(2), width);
  view.expect_count(view.read(3), rows);
  view.expect_count(view.read(4), rows);
  if (added) view.expect_count(view.read(5), rows * width);
  view.expect_count(view.write(0), rows * width);
  view.expect_count(view.write(1), width);
  view.expect_count(view.write(2), width);
  return kernel_of([x = view.in<T>(0), dy = view.in<T>(1), gamma = view.in<T>(2), mean = view.in<float>(3),
                    rstd = view.in<float>(4), other = added ? view.in<T>(5) : nullptr, dx = view.out<T>(0),
                    dgamma = view.out<float>(1), dbeta = view.out<float>(2), rows, width, threads = view.threads(),
                    scratch = view.scratch(RowChunks(rows).count * 2 * width * static_cast<int64_t>(sizeof(float)))] {
    float* sums = reinterpret_cast<float*>(scratch.data);
    const RowChunks chunks(rows);
    parallel_for(threads, chunks.count, [&](int64_t i, int) {
      float* part = sums + i * 2 * width;
      std::memset(part, 0, static_cast<size_t>(2 * width) * sizeof(float));
      const auto derive = [&](int64_t at, int64_t count) {
        backward_rows(x + at * width, dy + at * width, gamma, mean + at, rstd + at, dx + at * width, part, count,
                      width);
      };
      if constexpr (!added) return derive(chunks.first(i), chunks.size(i));
      few_rows<T>(chunks.first(i), chunks.size(i), width, [&](int64_t at, int64_t count) {
        derive(at, count);
        add_elements(other + at * width, dx + at * width, dx + at * width, count * width);
      });
    });
    for (int64_t j = 0; j < width; ++j) dgamma[j] = sums[j], dbeta[j] = sums[width + j];
    for (int64_t i = 1; i < chunks.count; ++i) {
      const float* part = sums + i * 2 * width;
      for (int64_t j = 0; j < width; ++j) dgamma[j] += part[j], dbeta[j] += part[width + j];
    }
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
  return RowChunks(row_count(shape)).count * 2 * last_dim(shape) * static_cast<int64_t>(sizeof(float));
}

constexpr KernelEntry kEntries[] = {{"layernorm", make_forward<false>},
                                    {"layernorm_grad", make_backward<false>, Accepts::floats, backward_workspace},
                                    {"add_layernorm", make_forward<true>},
                                    {"layernorm_grad_add", make_backward<true>, Accepts::floats, backward_workspace}};

}  // namespace

std::span<const KernelEntry> layernorm_kernels() { return kEntries; }

}  // namespace prun::cpu
