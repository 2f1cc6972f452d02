// cross_entropy over a vocabulary that is split over ranks, in three ops with a reduction over the ranks after each of
// the first two: maxima, sums, loss. The logits are read once by each of these two.
#include <cmath>
#include <limits>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/ops/columns.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {
namespace {

// A rank whose columns are all padding has the maximum of nothing.
template <class T>
PRUN_CLONES void row_maxima(const T* logits, float* maxima, int64_t first, int64_t last, Columns columns) {
  for (int64_t row = first; row < last; ++row) {
    const T* from = logits + row * columns.count;
    float top = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < columns.valid; ++i) top = load(from[i]) > top ? load(from[i]) : top;
    maxima[row] = top;
  }
}

template <class T>
PRUN_INLINE void row_sums(const T* logits, const int32_t* targets, const float* maxima, float* sums, float* hits,
                          int64_t first, int64_t last, Columns columns) {
  for (int64_t row = first; row < last; ++row) {
    const T* from = logits + row * columns.count;
    const float top = maxima[row];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < columns.valid; ++i) sum += exp_f32(load(from[i]) - top);
    const int64_t target = columns.find(targets[row]);
    sums[row] = sum;
    hits[row] = target < 0 ? 0 : load(from[target]);
  }
}

template <class T>
std::unique_ptr<Kernel> max_kernel(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  const int64_t rows = row_count(view.read(0).shape);
  view.expect_count(view.write(0), rows);
  return kernel_of([logits = view.in<T>(0), maxima = view.out<float>(0), rows, columns, threads = view.threads()] {
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) { row_maxima(logits, maxima, begin, end, columns); });
  });
}

template <class T>
std::unique_ptr<Kernel> sums_kernel(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  const int64_t rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), rows);
  view.expect_count(view.read(2), rows);
  view.expect_count(view.write(0), 2 * rows);
  return kernel_of([logits = view.in<T>(0), targets = view.in<int32_t>(1), maxima = view.in<float>(2),
                    sums = view.out<float>(0), rows, columns, threads = view.threads()] {
    columns.require(targets, rows);
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) {
      with_lanes([&]<int>()
                     PRUN_INLINED { row_sums(logits, targets, maxima, sums, sums + rows, begin, end, columns); });
    });
  });
}

std::unique_ptr<Kernel> make_finish(const OpView& view) {
  const int64_t rows = view.write(1).count();
  view.expect_count(view.read(0), 2 * rows);
  view.expect_count(view.read(1), rows);
  view.expect_count(view.read(3), rows);
  view.expect_count(view.write(0), 1);
  return kernel_of([sums = view.in<float>(0), maxima = view.in<float>(1), targets = view.in<int32_t>(3),
                    loss = view.out<float>(0), lse = view.out<float>(1), rows,
                    scale = view.attrs().number("scale", 1)] {
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      lse[row] = maxima[row] + std::log(sums[row]);
      if (targets[row] == kIgnoredTarget) continue;
      sum += static_cast<double>(lse[row]) - static_cast<double>(sums[rows + row]);
    }
    *loss = static_cast<float>(scale * sum);
  });
}

}  // namespace

const Family split_cross_entropy_kernels = {{"cross_entropy_max", PRUN_FLOAT_MAKER(read(0), max_kernel<T>(view))},
                                            {"cross_entropy_sums", PRUN_FLOAT_MAKER(read(0), sums_kernel<T>(view))},
                                            {"cross_entropy_finish", make_finish}};

}  // namespace prun::cpu
