// cross_entropy over a vocabulary that is split over ranks, in three ops with an all-reduce after each of the first
// two: maxima, sums, loss. Each of the first two reads the logits once.
#include "launch.h"
#include "sums.h"
#include "vocabulary.cuh"

namespace prun::cuda {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Computes the maximum of each row. The maximum of a rank whose columns are all padding is -inf.
template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) row_maxima(const T* logits, float* maxima, Columns columns) {
  const int64_t row = blockIdx.x;
  float top = kNothing;
  each_in_row(logits + row * columns.count, columns.valid, [&](const auto& x) {
#pragma unroll
    for (const float logit : x) top = fmaxf(top, logit);
  });
  top = block_max(top);
  if (threadIdx.x == 0) maxima[row] = top;
}

// Computes sums [2][rows]: Σ exp(logit − maximum), and this rank's part of the target's (smoothed) logit.
template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    row_sums(const T* logits, const int32_t* targets, const float* maxima, float* sums, Columns columns, Terms terms) {
  const int64_t row = blockIdx.x;
  const T* from = logits + row * columns.count;
  const float top = maxima[row] == -INFINITY ? 0.0f : maxima[row];  // all logits are -inf: the sum is 0
  float sum = 0;
  each_in_row(from, columns.valid, [&](const auto& x) {
#pragma unroll
    for (const float logit : x) sum += __expf(logit - top);
  });
  sum = block_sum(sum);
  const float logit = smoothed_logit(from, targets[row], columns, terms);
  if (threadIdx.x != 0) return;
  sums[row] = sum;
  sums[gridDim.x + row] = logit;
}

__global__ void finish_rows(const float* sums, const float* maxima, const int32_t* targets, float* lse, double* parts,
                            int64_t rows, Terms terms) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float shifted = maxima[row] + logf(sums[row]);
  lse[row] = shifted;
  const double loss = static_cast<double>(shifted) - static_cast<double>(sums[rows + row]);
  parts[row] = terms.factor(row, targets[row]) == 0 ? 0 : static_cast<double>(terms.share(row)) * loss;
}

std::unique_ptr<Kernel> make_max(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  const int64_t rows = view.read(0).shape.rows();
  view.expect_count(view.write(0), rows);
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    return kernel_of([logits = view.in<T>(0), maxima = view.out<float>(0), rows, columns](cudaStream_t stream) {
      if (rows > 0)
        launch(row_maxima<T>, static_cast<unsigned>(rows), row_threads(columns), 0, stream, logits, maxima, columns);
    });
  });
}

std::unique_ptr<Kernel> make_sums(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  const int64_t rows = view.read(0).shape.rows();
  view.expect_count(view.read(1), rows);
  view.expect_count(view.read(2), rows);
  view.expect_count(view.write(0), 2 * rows);
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    return kernel_of([logits = view.in<T>(0), targets = view.in<int32_t>(1), maxima = view.in<float>(2),
                      sums = view.out<float>(0), rows, columns, terms = terms_of(view, 3, rows)](cudaStream_t stream) {
      if (rows > 0)
        launch(row_sums<T>, static_cast<unsigned>(rows), row_threads(columns), 0, stream, logits, targets, maxima, sums,
               columns, terms);
    });
  });
}

size_t workspace(const OpView& view) { return static_cast<size_t>(view.write(1).count()) * sizeof(double); }

std::unique_ptr<Kernel> make_finish(const OpView& view) {
  const int64_t rows = view.write(1).count();
  view.expect_count(view.read(0), 2 * rows);
  view.expect_count(view.read(1), rows);
  view.expect_count(view.read(3), rows);
  view.expect_count(view.write(0), 1);
  return kernel_of([sums = view.in<float>(0), maxima = view.in<float>(1), targets = view.in<int32_t>(3),
                    loss = view.out<float>(0), lse = view.out<float>(1), parts = scratch(view, workspace(view)), rows,
                    terms = terms_of(view, 4, rows), scale = view.number("scale", 1)](cudaStream_t stream) {
    double* data = static_cast<double*>(parts.data);
    launch(finish_rows, blocks_for(rows, 256, INT32_MAX), 256, 0, stream, sums, maxima, targets, lse, data, rows,
           terms);
    finish_sum(stream, data, rows, scale, loss);
  });
}

const KernelFamily kFamily = {{"cross_entropy_max", make_max},
                              {"cross_entropy_sums", make_sums},
                              {"cross_entropy_finish", make_finish, workspace}};

}  // namespace
}  // namespace prun::cuda
