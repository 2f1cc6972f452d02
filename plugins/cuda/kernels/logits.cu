// bce, squares and ops over rows of logits besides cross_entropy: kl, logsumexp, accuracy. A block takes whole rows;
// the sums over rows go through the workspace, so that their order depends on the size only.
#include <algorithm>
#include <limits>

#include "block.cuh"
#include "launch.h"
#include "op.h"
#include "prun/sdk/routing.h"
#include "sums.h"
#include "vocabulary.cuh"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

double scale_of(const OpView& view) { return view.number("scale", 1); }
int64_t blocks_of(int64_t items) { return std::clamp<int64_t>(items, 1, 1056); }
int64_t rows_of(const OpView& view) { return view.read(0).shape.rows(); }
size_t row_parts(const OpView& view) { return 2 * static_cast<size_t>(blocks_of(rows_of(view))) * sizeof(double); }
int64_t runs_of(const OpView& view) { return (view.read(0).count() + kThreads - 1) / kThreads; }
size_t element_parts(const OpView& view) { return static_cast<size_t>(blocks_of(runs_of(view))) * sizeof(double); }

struct BinaryCrossEntropy {
  __device__ double operator()(double x, double target) const {
    return fmax(x, 0.0) - x * target + log1p(exp(-fabs(x)));
  }
};
struct SquareOf {
  __device__ double operator()(double x, double) const { return x * x; }
};

template <class T, class F>
__global__ void __launch_bounds__(kThreads) sum_all(const T* x, const T* other, int64_t count, double* parts, F f) {
  double sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads)
    sum += f(static_cast<double>(widen(x[i])), other == nullptr ? 0.0 : static_cast<double>(widen(other[i])));
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

template <class F>
std::unique_ptr<Kernel> make_sum(const OpView& view, bool pair, double scale) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t count = view.read(0).count(), blocks = blocks_of(runs_of(view));
    if (pair) view.expect_count(view.read(1), count);
    view.expect_count(view.write(0), 1);
    return kernel_of([x = view.in<T>(0), other = pair ? view.in<T>(1) : nullptr, count, blocks, scale,
                      parts = scratch(view, element_parts(view)), sum = view.out<float>(0)](cudaStream_t stream) {
      double* data = static_cast<double*>(parts.data);
      launch(sum_all<T, F>, static_cast<unsigned>(blocks), kThreads, 0, stream, x, other, count, data, F{});
      finish_sum(stream, data, blocks, scale, sum);
    });
  });
}
std::unique_ptr<Kernel> make_bce(const OpView& view) {
  return make_sum<BinaryCrossEntropy>(view, true, scale_of(view));
}
std::unique_ptr<Kernel> make_squares(const OpView& view) { return make_sum<SquareOf>(view, false, 1); }

template <class T>
__global__ void __launch_bounds__(kThreads)
    bce_gradient(const T* x, const T* target, int64_t count, T* dx, float scale) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads)
    dx[i] = narrow<T>(scale * (1 / (1 + expf(-widen(x[i]))) - widen(target[i])));
}
std::unique_ptr<Kernel> make_bce_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t count = view.read(0).count();
    view.expect_count(view.read(1), count);
    view.expect_count(view.write(0), count);
    return kernel_of([x = view.in<T>(0), target = view.in<T>(1), dx = view.out<T>(0), count,
                      scale = static_cast<float>(scale_of(view))](cudaStream_t stream) {
      launch(bce_gradient<T>, blocks_for(count, kThreads), kThreads, 0, stream, x, target, count, dx, scale);
    });
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    squares_gradient(const T* x, const float* ds, int64_t count, float* dx, float factor) {
  const float by = factor * *ds;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads)
    dx[i] = by * widen(x[i]);
}
std::unique_ptr<Kernel> make_squares_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t count = view.read(0).count();
    view.expect_count(view.read(1), 1);
    view.expect_count(view.write(0), count);
    return kernel_of([x = view.in<T>(0), ds = view.in<float>(1), dx = view.out<float>(0), count,
                      factor = static_cast<float>(2 * view.number("factor", 1))](cudaStream_t stream) {
      launch(squares_gradient<T>, blocks_for(count, kThreads), kThreads, 0, stream, x, ds, count, dx, factor);
    });
  });
}

// Returns log Σ exp(x·by) of a row, in every thread of the block.
template <class T>
__device__ double lse_of(const T* x, int64_t width, double by) {
  float top = -std::numeric_limits<float>::infinity();
  for (int64_t i = threadIdx.x; i < width; i += kThreads) top = fmaxf(top, widen(x[i]));
  top = block_max(top);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads)
    sum += exp((static_cast<double>(widen(x[i])) - static_cast<double>(top)) * by);
  return static_cast<double>(top) * by + log(block_sum(sum));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    kl_of_rows(const T* x, const T* teacher, int64_t rows, int64_t width, double by, double* parts) {
  double all = 0;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T *own = x + r * width, *its = teacher + r * width;
    const double own_lse = lse_of(own, width, by), its_lse = lse_of(its, width, by);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < width; i += kThreads) {
      const double log_p = static_cast<double>(widen(its[i])) * by - its_lse;
      sum += exp(log_p) * (log_p - (static_cast<double>(widen(own[i])) * by - own_lse));
    }
    all += block_sum(sum);
  }
  if (threadIdx.x == 0) parts[blockIdx.x] = all;
}
std::unique_ptr<Kernel> make_kl(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t rows = rows_of(view), blocks = blocks_of(rows);
    view.expect_count(view.read(1), view.read(0).count());
    view.expect_count(view.write(0), 1);
    return kernel_of([x = view.in<T>(0), teacher = view.in<T>(1), rows, blocks, width = view.read(0).shape.last(),
                      by = 1 / view.number("temperature", 1), scale = scale_of(view),
                      parts = scratch(view, row_parts(view)), loss = view.out<float>(0)](cudaStream_t stream) {
      double* data = static_cast<double*>(parts.data);
      launch(kl_of_rows<T>, static_cast<unsigned>(blocks), kThreads, 0, stream, x, teacher, rows, width, by, data);
      finish_sum(stream, data, blocks, scale, loss);
    });
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    kl_gradient(const T* x, const T* teacher, int64_t rows, int64_t width, double by, double factor, T* dx) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T *own = x + r * width, *its = teacher + r * width;
    const double own_lse = lse_of(own, width, by), its_lse = lse_of(its, width, by);
    for (int64_t i = threadIdx.x; i < width; i += kThreads)
      dx[r * width + i] =
          narrow<T>(static_cast<float>(factor * (exp(static_cast<double>(widen(own[i])) * by - own_lse) -
                                                 exp(static_cast<double>(widen(its[i])) * by - its_lse))));
  }
}
std::unique_ptr<Kernel> make_kl_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t rows = rows_of(view);
    view.expect_count(view.read(1), view.read(0).count());
    view.expect_count(view.write(0), view.read(0).count());
    const double by = 1 / view.number("temperature", 1);
    return kernel_of([x = view.in<T>(0), teacher = view.in<T>(1), dx = view.out<T>(0), rows, by,
                      width = view.read(0).shape.last(), factor = scale_of(view) * by](cudaStream_t stream) {
      launch(kl_gradient<T>, static_cast<unsigned>(blocks_of(rows)), kThreads, 0, stream, x, teacher, rows, width, by,
             factor, dx);
    });
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) lse_of_rows(const T* x, int64_t rows, int64_t width, float* lse) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const double one = lse_of(x + r * width, width, 1);
    if (threadIdx.x == 0) lse[r] = static_cast<float>(one);
  }
}
std::unique_ptr<Kernel> make_logsumexp(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t rows = rows_of(view);
    view.expect_count(view.write(0), rows);
    return kernel_of(
        [x = view.in<T>(0), lse = view.out<float>(0), rows, width = view.read(0).shape.last()](cudaStream_t stream) {
          launch(lse_of_rows<T>, static_cast<unsigned>(blocks_of(rows)), kThreads, 0, stream, x, rows, width, lse);
        });
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    lse_gradient(const T* x, const float* lse, const float* dlse, int64_t count, int64_t width, T* dx) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads)
    dx[i] = narrow<T>(dlse[i / width] * expf(widen(x[i]) - lse[i / width]));
}
std::unique_ptr<Kernel> make_logsumexp_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t count = view.read(0).count();
    view.expect_count(view.read(1), rows_of(view));
    view.expect_count(view.read(2), rows_of(view));
    view.expect_count(view.write(0), count);
    return kernel_of([x = view.in<T>(0), lse = view.in<float>(1), dlse = view.in<float>(2), dx = view.out<T>(0), count,
                      width = view.read(0).shape.last()](cudaStream_t stream) {
      launch(lse_gradient<T>, blocks_for(count, kThreads), kThreads, 0, stream, x, lse, dlse, count, width, dx);
    });
  });
}

// Returns the runs of documents, by which some rows do not count, or null.
const int32_t* runs_of(const OpView& view, size_t read) {
  if (view.integer("runs") == 0) return nullptr;
  view.expect_count(view.read(read), 2 * rows_of(view));
  return view.in<int32_t>(read);
}

// A block adds the probabilities of one expert.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_softmax(const T* x, const int32_t* runs, int64_t rows, int64_t width, float* sums) {
  double sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kThreads) {
    if (runs != nullptr && !sdk::counts(runs + 2 * r)) continue;
    const T* row = x + r * width;
    float top = -std::numeric_limits<float>::infinity();
    double all = 0;
    for (int64_t i = 0; i < width; ++i) top = fmaxf(top, widen(row[i]));
    for (int64_t i = 0; i < width; ++i) all += static_cast<double>(expf(widen(row[i]) - top));
    sum += static_cast<double>(expf(widen(row[blockIdx.x]) - top)) / all;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = static_cast<float>(sum);
}
std::unique_ptr<Kernel> make_softmax_sums(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t width = view.read(0).shape.last();
    view.expect_count(view.write(0), width);
    return kernel_of([x = view.in<T>(0), runs = runs_of(view, 1), sums = view.out<float>(0), rows = rows_of(view),
                      width](cudaStream_t stream) {
      launch(sum_softmax<T>, static_cast<unsigned>(width), kThreads, 0, stream, x, runs, rows, width, sums);
    });
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_softmax_gradient(const T* x, const float* ds, const int32_t* runs, int64_t rows, int64_t width, T* dx) {
  for (int64_t r = int64_t{blockIdx.x} * kThreads + threadIdx.x; r < rows; r += int64_t{gridDim.x} * kThreads) {
    const T* row = x + r * width;
    float top = -std::numeric_limits<float>::infinity();
    double all = 0, mean = 0;
    for (int64_t i = 0; i < width; ++i) top = fmaxf(top, widen(row[i]));
    for (int64_t i = 0; i < width; ++i) {
      const double power = static_cast<double>(expf(widen(row[i]) - top));
      all += power, mean += power * static_cast<double>(ds[i]);
    }
    const bool counts = runs == nullptr || sdk::counts(runs + 2 * r);
    const float share = counts ? static_cast<float>(1 / all) : 0.0f, middle = static_cast<float>(mean / all);
    for (int64_t i = 0; i < width; ++i)
      dx[r * width + i] = narrow<T>(expf(widen(row[i]) - top) * share * (ds[i] - middle));
  }
}
std::unique_ptr<Kernel> make_softmax_sums_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t width = view.read(0).shape.last();
    view.expect_count(view.read(1), width);
    view.expect_count(view.write(0), view.read(0).count());
    return kernel_of([x = view.in<T>(0), ds = view.in<float>(1), runs = runs_of(view, 2), dx = view.out<T>(0),
                      rows = rows_of(view), width](cudaStream_t stream) {
      launch(sum_softmax_gradient<T>, blocks_for(rows, kThreads), kThreads, 0, stream, x, ds, runs, rows, width, dx);
    });
  });
}

// Each block's sums of right and of counted rows. The first of equal logits counts as the largest.
template <class T>
__global__ void __launch_bounds__(kThreads)
    count_right(const T* x, const int32_t* targets, int64_t rows, int64_t width, double* right, double* counted) {
  double hits = 0, some = 0;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T* row = x + r * width;
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t i = threadIdx.x; i < width; i += kThreads) top = fmaxf(top, widen(row[i]));
    top = block_max(top);
    double first = -static_cast<double>(width);  // minus the index of the first one
    for (int64_t i = threadIdx.x; i < width; i += kThreads)
      if (widen(row[i]) == top) first = fmax(first, -static_cast<double>(i));
    first = block_max(first);
    const int32_t target = targets[r];
    some += target == kIgnoredTarget ? 0 : 1;
    hits += static_cast<double>(target) == -first && target != kIgnoredTarget ? 1 : 0;
  }
  if (threadIdx.x == 0) right[blockIdx.x] = hits, counted[blockIdx.x] = some;
}
std::unique_ptr<Kernel> make_accuracy(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t rows = rows_of(view), blocks = blocks_of(rows);
    view.expect_count(view.read(1), rows);
    view.expect_count(view.write(0), 1);
    view.expect_count(view.write(1), 1);
    return kernel_of([x = view.in<T>(0), targets = view.in<int32_t>(1), rows, blocks, width = view.read(0).shape.last(),
                      scale = scale_of(view), parts = scratch(view, row_parts(view)), right = view.out<float>(0),
                      counted = view.out<float>(1)](cudaStream_t stream) {
      double *hits = static_cast<double*>(parts.data), *some = hits + blocks;
      launch(count_right<T>, static_cast<unsigned>(blocks), kThreads, 0, stream, x, targets, rows, width, hits, some);
      finish_sum(stream, hits, blocks, scale, right);
      finish_sum(stream, some, blocks, scale, counted);
    });
  });
}

const KernelFamily kFamily = {{"bce", make_bce, element_parts},
                              {"bce_grad", make_bce_grad},
                              {"squares", make_squares, element_parts},
                              {"squares_grad", make_squares_grad},
                              {"kl", make_kl, row_parts},
                              {"kl_grad", make_kl_grad},
                              {"logsumexp", make_logsumexp},
                              {"logsumexp_grad", make_logsumexp_grad},
                              {"softmax_sums", make_softmax_sums},
                              {"softmax_sums_grad", make_softmax_sums_grad},
                              {"accuracy", make_accuracy, row_parts}};

}  // namespace
}  // namespace prun::cuda
