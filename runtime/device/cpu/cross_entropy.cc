// cross_entropy with its softmax fused: rows are read twice and no probabilities are stored, only the log-sum-exp.
// cross_entropy_and_grad reads them from memory once: what is left to do for a row is done while the cache holds it.
// The gradient serves vocabularies that are split over ranks too, whose loss is in split_cross_entropy.cc.
#include <cmath>

#include "device/cpu/columns.h"
#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/simd.h"
#include "device/cpu/vector_math.h"

namespace prun::cpu {
namespace {

template <class T>
PRUN_CLONES void log_sum_exp(const T* logits, float* lse, int64_t first, int64_t last, int64_t width) {
  for (int64_t row = first; row < last; ++row) {
    const T* from = logits + row * width;
    float top = load(from[0]);
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < width; ++i) top = load(from[i]) > top ? load(from[i]) : top;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += exp_f32(load(from[i]) - top);
    lse[row] = top + std::log(sum);
  }
}

template <class T>
PRUN_CLONES void gradient(const T* logits, const int32_t* targets, const float* lse, T* dlogits, int64_t first,
                          int64_t last, Columns columns, float scale) {
  for (int64_t row = first; row < last; ++row) {
    const T* from = logits + row * columns.count;
    T* to = dlogits + row * columns.count;
    const float shift = lse[row];
    const int64_t target = columns.find(targets[row]);
    const float hit = target < 0 ? 0 : load(from[target]);  // read first: dlogits may be the same memory
#pragma omp simd
    for (int64_t i = 0; i < columns.valid; ++i) store(to[i], scale * exp_f32(load(from[i]) - shift));
    for (int64_t i = columns.valid; i < columns.count; ++i) store(to[i], 0);
    if (target >= 0) store(to[target], scale * (exp_f32(hit - shift) - 1.0f));
  }
}

Columns whole_columns(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  PRUN_CHECK(columns.valid == columns.count && columns.vocab == columns.count,
             "a split vocabulary has a loss of its own");
  return columns;
}

int64_t workspace(const OpView& view) { return row_count(view.read(0).shape) * static_cast<int64_t>(sizeof(float)); }

template <class T>
std::unique_ptr<Kernel> forward(const OpView& view) {
  const Columns columns = whole_columns(view);
  const int64_t width = columns.count, rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), rows);
  view.expect_count(view.write(0), 1);
  view.expect_count(view.write(1), rows);
  return kernel_of([logits = view.in<T>(0), targets = view.in<int32_t>(1), loss = view.out<float>(0),
                    lse = view.out<float>(1), rows, width, columns, threads = view.threads(),
                    scale = view.attrs().number("scale", 1)] {
    parallel_for(threads, threads, [&](int64_t i, int) {
      log_sum_exp(logits, lse, rows * i / threads, rows * (i + 1) / threads, width);
    });
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      sum +=
          static_cast<double>(lse[row]) - static_cast<double>(load(logits[row * width + columns.find(targets[row])]));
    }
    *loss = static_cast<float>(scale * sum);
  });
}

template <class T>
std::unique_ptr<Kernel> backward(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  const int64_t rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), rows);
  view.expect_count(view.read(2), rows);
  view.expect_count(view.write(0), rows * columns.count);
  return kernel_of([logits = view.in<T>(0), targets = view.in<int32_t>(1), lse = view.in<float>(2),
                    dlogits = view.out<T>(0), rows, columns, threads = view.threads(),
                    scale = static_cast<float>(view.attrs().number("scale", 1))] {
    parallel_for(threads, threads, [&](int64_t i, int) {
      gradient(logits, targets, lse, dlogits, rows * i / threads, rows * (i + 1) / threads, columns, scale);
    });
  });
}

// A row's target logit is kept, for the sum over rows in their order, before its gradient takes the place.
template <class T>
std::unique_ptr<Kernel> both(const OpView& view) {
  const Columns columns = whole_columns(view);
  const int64_t rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), rows);
  view.expect_count(view.write(0), 1);
  view.expect_count(view.write(1), rows);
  view.expect_count(view.write(2), rows * columns.count);
  return kernel_of([logits = view.in<T>(0), targets = view.in<int32_t>(1), loss = view.out<float>(0),
                    lse = view.out<float>(1), dlogits = view.out<T>(2), hits = view.scratch(workspace(view)), rows,
                    columns, threads = view.threads(), scale = view.attrs().number("scale", 1)] {
    float* hit = reinterpret_cast<float*>(hits.data);
    parallel_for(threads, threads, [&](int64_t i, int) {
      for (int64_t row = rows * i / threads; row < rows * (i + 1) / threads; ++row) {
        log_sum_exp(logits, lse, row, row + 1, columns.count);
        hit[row] = load(logits[row * columns.count + columns.find(targets[row])]);
        gradient(logits, targets, lse, dlogits, row, row + 1, columns, static_cast<float>(scale));
      }
    });
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) sum += static_cast<double>(lse[row]) - static_cast<double>(hit[row]);
    *loss = static_cast<float>(scale * sum);
  });
}

std::unique_ptr<Kernel> make_forward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return forward<T>(view); });
}
std::unique_ptr<Kernel> make_backward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return backward<T>(view); });
}
std::unique_ptr<Kernel> make_both(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return both<T>(view); });
}

constexpr KernelEntry kEntries[] = {{"cross_entropy", make_forward},
                                    {"cross_entropy_grad", make_backward},
                                    {"cross_entropy_and_grad", make_both, Accepts::floats, workspace}};

}  // namespace

std::span<const KernelEntry> cross_entropy_kernels() { return kEntries; }

}  // namespace prun::cpu
