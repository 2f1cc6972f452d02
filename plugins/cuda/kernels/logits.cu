// bce, squares and ops over rows of logits besides cross_entropy: kl, logsumexp, accuracy; rows of many experts'
// logits: softmax_sums. A block, or a warp if they are of experts, takes whole rows; the sums over rows go through the
// workspace, so that their order depends on the size only.
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
size_t kl_parts(const OpView& view) { return static_cast<size_t>(rows_of(view)) * sizeof(double); }
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

// Returns whether packs begin at the same elements of both.
bool same_alignment(const void* a, const void* b) {
  return reinterpret_cast<uintptr_t>(a) % 16 == reinterpret_cast<uintptr_t>(b) % 16;
}
unsigned threads_of(int64_t width) { return row_threads(Columns{0, width, width, width}); }

// Calls packs(first, N) for the packs of a row, and one(i) for its other elements. Loads of packs need `packed`.
template <class T, class Packs, class One>
__device__ __forceinline__ void each_column(const T* row, int64_t width, bool packed, Packs packs, One one) {
  constexpr int N = kPack<T>;
  const Run run = packed ? run_of(row, width) : Run{0, 0};
#pragma unroll 1
  for (int64_t pack = threadIdx.x; pack < run.packs; pack += blockDim.x) packs(run.head + pack * N);
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < width - run.packs * N; i += blockDim.x) one(i < run.head ? i : i + run.packs * N);
}

// log Σ exp(by·x) of a row is top + rest.
struct RowSum {
  float top, by, rest;
  __device__ __forceinline__ float probability(float x) const { return __expf(__fmul_rn(x, by) - top - rest); }
  __device__ __forceinline__ double lse() const { return double{top} + double{rest}; }
};

// Every thread of the block receives the result.
template <class T>
__device__ __forceinline__ RowSum sum_of(const T* row, int64_t width, float by) {
  Normalizer mine;
  each_in_row(row, width, [&](const auto& x) {
    float scaled[sizeof x / sizeof x[0]];
#pragma unroll
    for (size_t i = 0; i < sizeof x / sizeof x[0]; ++i) scaled[i] = __fmul_rn(x[i], by);
    mine.add(scaled);
  });
  const float top = block_max(mine.top);
  const float sum = block_sum(mine.sum * __expf(mine.top - Normalizer::shift(top)));
  return {top, by, logf(sum)};
}

// A block computes one row.
template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    kl_of_rows(const T* x, const T* teacher, int64_t width, float by, double* parts, bool packed) {
  const T *own = x + blockIdx.x * width, *its = teacher + blockIdx.x * width;
  const RowSum own_sum = sum_of(own, width, by), its_sum = sum_of(its, width, by);
  const double shift = own_sum.lse() - its_sum.lse();
  double sum = 0;
  const auto add = [&](float student, float teachers) {
    const float p = its_sum.probability(teachers);
    if (p != 0)
      sum += double{p} *
             (double{__fmul_rn(teachers, by)} - double{__fmul_rn(student, by)} + shift);  // 0 if both are equal
  };
  each_column(
      own, width, packed,
      [&](int64_t at) {
        const auto a = load_pack<kPack<T>>(own + at), b = load_pack<kPack<T>>(its + at);
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i) add(a.wide(i), b.wide(i));
      },
      [&](int64_t at) { add(widen(own[at]), widen(its[at])); });
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
std::unique_ptr<Kernel> make_kl(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t rows = rows_of(view);
    view.expect_count(view.read(1), view.read(0).count());
    view.expect_count(view.write(0), 1);
    return kernel_of([x = view.in<T>(0), teacher = view.in<T>(1), rows, width = view.read(0).shape.last(),
                      by = static_cast<float>(1 / view.number("temperature", 1)), scale = scale_of(view),
                      parts = scratch(view, kl_parts(view)), loss = view.out<float>(0)](cudaStream_t stream) {
      double* data = static_cast<double*>(parts.data);
      launch(kl_of_rows<T>, static_cast<unsigned>(rows), threads_of(width), 0, stream, x, teacher, width, by, data,
             same_alignment(x, teacher));
      finish_sum(stream, data, rows, scale, loss);
    });
  });
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    kl_gradient(const T* x, const T* teacher, int64_t width, float by, float factor, T* dx, bool packed) {
  const int64_t first = blockIdx.x * width;
  const T *own = x + first, *its = teacher + first;
  T* const to = dx + first;
  const RowSum own_sum = sum_of(own, width, by), its_sum = sum_of(its, width, by);
  each_column(
      own, width, packed,
      [&](int64_t at) {
        const auto a = load_pack<kPack<T>>(own + at), b = load_pack<kPack<T>>(its + at);
        float d[kPack<T>];
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i)
          d[i] = factor * (own_sum.probability(a.wide(i)) - its_sum.probability(b.wide(i)));
        store_pack(to + at, narrowed<T, kPack<T>>(d));
      },
      [&](int64_t at) {
        to[at] = narrow<T>(factor * (own_sum.probability(widen(own[at])) - its_sum.probability(widen(its[at]))));
      });
}
std::unique_ptr<Kernel> make_kl_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    view.expect_count(view.read(1), view.read(0).count());
    view.expect_count(view.write(0), view.read(0).count());
    const double by = 1 / view.number("temperature", 1);
    return kernel_of([x = view.in<T>(0), teacher = view.in<T>(1), dx = view.out<T>(0), rows = rows_of(view),
                      by = static_cast<float>(by), width = view.read(0).shape.last(),
                      factor = static_cast<float>(scale_of(view) * by)](cudaStream_t stream) {
      launch(kl_gradient<T>, static_cast<unsigned>(rows), threads_of(width), 0, stream, x, teacher, width, by, factor,
             dx, same_alignment(x, teacher) && same_alignment(x, dx));
    });
  });
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) lse_of_rows(const T* x, int64_t width, float* lse) {
  const RowSum sum = sum_of(x + blockIdx.x * width, width, 1);
  if (threadIdx.x == 0) lse[blockIdx.x] = static_cast<float>(sum.lse());
}
std::unique_ptr<Kernel> make_logsumexp(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t rows = rows_of(view);
    view.expect_count(view.write(0), rows);
    return kernel_of(
        [x = view.in<T>(0), lse = view.out<float>(0), rows, width = view.read(0).shape.last()](cudaStream_t stream) {
          launch(lse_of_rows<T>, static_cast<unsigned>(rows), threads_of(width), 0, stream, x, width, lse);
        });
  });
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    lse_gradient(const T* x, const float* lse, const float* dlse, int64_t width, T* dx, bool packed) {
  const int64_t first = blockIdx.x * width;
  const T* const from = x + first;
  T* const to = dx + first;
  const float shift = lse[blockIdx.x], factor = dlse[blockIdx.x];
  each_column(
      from, width, packed,
      [&](int64_t at) {
        const auto pack = load_pack<kPack<T>>(from + at);
        float d[kPack<T>];
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i) d[i] = factor * __expf(pack.wide(i) - shift);
        store_pack(to + at, narrowed<T, kPack<T>>(d));
      },
      [&](int64_t at) { to[at] = narrow<T>(factor * __expf(widen(from[at]) - shift)); });
}
std::unique_ptr<Kernel> make_logsumexp_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t rows = rows_of(view);
    view.expect_count(view.read(1), rows);
    view.expect_count(view.read(2), rows);
    view.expect_count(view.write(0), view.read(0).count());
    return kernel_of([x = view.in<T>(0), lse = view.in<float>(1), dlse = view.in<float>(2), dx = view.out<T>(0), rows,
                      width = view.read(0).shape.last()](cudaStream_t stream) {
      launch(lse_gradient<T>, static_cast<unsigned>(rows), threads_of(width), 0, stream, x, lse, dlse, width, dx,
             same_alignment(x, dx));
    });
  });
}

// Returns the runs of documents, by which some rows do not count, or null.
const int32_t* runs_of(const OpView& view, size_t read) {
  if (view.integer("runs") == 0) return nullptr;
  view.expect_count(view.read(read), 2 * rows_of(view));
  return view.in<int32_t>(read);
}

// The maximum of a row, and the factor of its exponentials: 1 / their sum, or 0 if the row does not count.
struct RowScale {
  float top, factor;
};

// The parts of the scratch: scales [rows], sums [chunks][width], each of the `size` rows of a chunk.
struct SumsOfRows {
  int64_t rows, width, size, chunks;
  explicit SumsOfRows(const OpView& view) : rows(rows_of(view)), width(view.read(0).shape.last()) {
    size = std::max<int64_t>(64, (rows + 255) / 256);
    chunks = (rows + size - 1) / size;
  }
  size_t scale_bytes() const { return (static_cast<size_t>(rows) * sizeof(RowScale) + 15) / 16 * 16; }
  size_t bytes() const { return scale_bytes() + static_cast<size_t>(chunks * width) * sizeof(float); }
};

// A warp reads a row.
template <class T>
__device__ __forceinline__ float warp_top(const T* row, int64_t width) {
  float top = -std::numeric_limits<float>::infinity();
  for (int64_t i = threadIdx.x % kWarp; i < width; i += kWarp) top = fmaxf(top, widen(row[i]));
  return warp_reduce(top, Larger{});
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_rows(const T* x, const int32_t* runs, int64_t rows, int64_t width, RowScale* scales) {
  for (int64_t r = first_item() / kWarp; r < rows; r += item_stride() / kWarp) {
    const T* row = x + r * width;
    const float top = warp_top(row, width);
    double all = 0;
    for (int64_t i = threadIdx.x % kWarp; i < width; i += kWarp) all += static_cast<double>(expf(widen(row[i]) - top));
    all = warp_sum(all);
    const bool counts = runs == nullptr || sdk::counts(runs + 2 * r);
    if (threadIdx.x % kWarp == 0) scales[r] = {top, counts ? static_cast<float>(1 / all) : 0.0f};
  }
}

// A block adds the probabilities of 32 columns in the rows of a chunk.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_softmax(const T* x, const RowScale* scales, int64_t rows, int64_t width, int64_t size, float* parts) {
  constexpr int kGroups = kThreads / kWarp;
  __shared__ double groups[kGroups][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t column = int64_t{blockIdx.x} * kWarp + lane, first = blockIdx.y * size;
  const int64_t end = first + size < rows ? first + size : rows;
  double sum = 0;
  if (column < width) {
#pragma unroll 4
    for (int64_t r = first + group; r < end; r += kGroups) {
      const RowScale scale = scales[r];
      const float p = expf(widen(x[r * width + column]) - scale.top) * scale.factor;
      sum += scale.factor == 0 ? 0.0 : static_cast<double>(p);
    }
  }
  groups[group][lane] = sum;
  __syncthreads();
  if (group != 0 || column >= width) return;
#pragma unroll
  for (int g = 1; g < kGroups; ++g) sum += groups[g][lane];
  parts[blockIdx.y * width + column] = static_cast<float>(sum);
}
std::unique_ptr<Kernel> make_softmax_sums(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const SumsOfRows s(view);
    view.expect_count(view.write(0), s.width);
    return kernel_of([x = view.in<T>(0), runs = runs_of(view, 1), sums = view.out<float>(0), s,
                      memory = scratch(view, s.bytes())](cudaStream_t stream) {
      auto* const scales = static_cast<RowScale*>(memory.data);
      auto* const parts = reinterpret_cast<float*>(static_cast<char*>(memory.data) + s.scale_bytes());
      const dim3 grid(static_cast<unsigned>((s.width + kWarp - 1) / kWarp), static_cast<unsigned>(s.chunks));
      launch(scale_rows<T>, blocks_for(s.rows * kWarp, kThreads), kThreads, 0, stream, x, runs, s.rows, s.width,
             scales);
      launch(sum_softmax<T>, grid, kThreads, 0, stream, x, scales, s.rows, s.width, s.size, parts);
      finish_columns(stream, parts, s.chunks, s.width, sums);
    });
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_softmax_gradient(const T* x, const float* ds, const int32_t* runs, int64_t rows, int64_t width, T* dx) {
  for (int64_t r = first_item() / kWarp; r < rows; r += item_stride() / kWarp) {
    const T* row = x + r * width;
    const float top = warp_top(row, width);
    double all = 0, mean = 0;
    for (int64_t i = threadIdx.x % kWarp; i < width; i += kWarp) {
      const double power = static_cast<double>(expf(widen(row[i]) - top));
      all += power, mean += power * static_cast<double>(ds[i]);
    }
    all = warp_sum(all), mean = warp_sum(mean);
    const bool counts = runs == nullptr || sdk::counts(runs + 2 * r);
    const float share = counts ? static_cast<float>(1 / all) : 0.0f, middle = static_cast<float>(mean / all);
    for (int64_t i = threadIdx.x % kWarp; i < width; i += kWarp)
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
      launch(sum_softmax_gradient<T>, blocks_for(rows * kWarp, kThreads), kThreads, 0, stream, x, ds, runs, rows, width,
             dx);
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
    int64_t first = width;  // of the thread's largest
    const auto look = [&](float logit, int64_t at) {
      if (logit > top || (logit == top && at < first)) top = logit, first = at;
    };
    each_column(
        row, width, true,
        [&](int64_t at) {
          const auto pack = load_pack<kPack<T>>(row + at);
#pragma unroll
          for (int i = 0; i < kPack<T>; ++i) look(pack.wide(i), at + i);
        },
        [&](int64_t at) { look(widen(row[at]), at); });
    const float most = block_max(top);
    const double largest = block_max(-static_cast<double>(top == most ? first : width));  // minus its index
    const int32_t target = targets[r];
    some += target == kIgnoredTarget ? 0 : 1;
    hits += static_cast<double>(target) == -largest && target != kIgnoredTarget ? 1 : 0;
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

const KernelFamily kFamily = {
    {"bce", make_bce, element_parts},
    {"bce_grad", make_bce_grad},
    {"squares", make_squares, element_parts},
    {"squares_grad", make_squares_grad},
    {"kl", make_kl, kl_parts},
    {"kl_grad", make_kl_grad},
    {"logsumexp", make_logsumexp},
    {"logsumexp_grad", make_logsumexp_grad},
    {"softmax_sums", make_softmax_sums, [](const OpView& view) { return SumsOfRows(view).bytes(); }},
    {"softmax_sums_grad", make_softmax_sums_grad},
    {"accuracy", make_accuracy, row_parts}};

}  // namespace
}  // namespace prun::cuda
