// reduce_dims, softmax and its gradient, and cumsum. Sums are in f64, in an order that does not depend on the threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/vector_math.h"
#include "prun/sdk/key_rules.h"

namespace prun::cpu {
namespace {

enum class Reduction : uint8_t { sum, mean, max };

// The input's dims after merging neighbours that are both reduced or both not.
struct Groups {
  std::vector<int64_t> sizes;
  std::vector<bool> reduced;
};
Groups groups_of(const OpView& view) {
  const std::vector<int64_t> dims = view.attrs().integers("dims");
  const Shape& shape = view.read(0).shape;
  Groups groups;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    const bool reduced = std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
    if (!groups.sizes.empty() && groups.reduced.back() == reduced) {
      groups.sizes.back() *= shape[d];
    } else {
      groups.sizes.push_back(shape[d]);
      groups.reduced.push_back(reduced);
    }
  }
  return groups;
}

template <class T>
PRUN_CLONES void add_row(const T* x, double* sums, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<double>(widen(x[i]));
}
template <class T>
PRUN_CLONES void larger_row(const T* x, double* most, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(widen(x[i]));
    most[i] = value > most[i] || value != value ? value : most[i];
  }
}

constexpr int64_t kColumns = 256;  // accumulators on the stack

// Reduces rows of `columns` contiguous elements. The reduced dims are visited in order; `strides` in elements.
template <class T>
struct Reducer {
  const T* x;
  Reduction kind;
  double factor;
  std::vector<int64_t> reduced_sizes, reduced_strides, kept_sizes, kept_strides;

  int64_t rows() const { return element_count(reduced_sizes); }
  static int64_t offset(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t at) {
    int64_t sum = 0;
    for (size_t d = sizes.size(); d-- > 0; at /= sizes[d]) sum += at % sizes[d] * strides[d];
    return sum;
  }
  // Reduces the columns [0, n) of the kept index `kept` from `first` on.
  void columns(int64_t kept, int64_t first, int64_t n, double* sums) const {
    const T* from = x + offset(kept_sizes, kept_strides, kept) + first;
    std::fill(sums, sums + n, kind == Reduction::max ? -std::numeric_limits<double>::infinity() : 0.0);
    const int64_t count = rows();
    for (int64_t r = 0; r < count; ++r) {
      const T* row = from + offset(reduced_sizes, reduced_strides, r);
      kind == Reduction::max ? larger_row(row, sums, n) : add_row(row, sums, n);
    }
  }
  // Reduces runs of `n` contiguous elements to one number.
  double runs(int64_t kept, int64_t n) const {
    const T* from = x + offset(kept_sizes, kept_strides, kept);
    const int64_t count = rows();
    double sum = kind == Reduction::max ? -std::numeric_limits<double>::infinity() : 0.0;
    for (int64_t r = 0; r < count; ++r) {
      const T* row = from + offset(reduced_sizes, reduced_strides, r);
      if (kind != Reduction::max) {
        sum += sum_range([](auto v) PRUN_INLINED { return v; }, n, row);
        continue;
      }
      for (int64_t i = 0; i < n; ++i) {
        const double value = static_cast<double>(widen(row[i]));
        sum = value > sum || value != value ? value : sum;
      }
    }
    return sum;
  }
};

template <class T, class Y>
std::unique_ptr<Kernel> reduce_into(const OpView& view) {
  const Groups groups = groups_of(view);
  const std::string op = view.attrs().text("op");
  Reducer<T> reducer{
      view.in<T>(0), op == "max" ? Reduction::max : op == "sum" ? Reduction::sum : Reduction::mean, 1, {}, {}, {}, {}};
  int64_t stride = view.read(0).count();
  if (op == "mean") reducer.factor = static_cast<double>(view.write(0).count()) / static_cast<double>(stride);
  const bool by_columns = !groups.reduced.empty() && !groups.reduced.back();
  const int64_t inner = groups.sizes.empty() ? 1 : groups.sizes.back();
  for (size_t g = 0; g < groups.sizes.size(); ++g) {
    stride /= groups.sizes[g];
    if (g + 1 == groups.sizes.size()) break;  // the inner loop
    (groups.reduced[g] ? reducer.reduced_sizes : reducer.kept_sizes).push_back(groups.sizes[g]);
    (groups.reduced[g] ? reducer.reduced_strides : reducer.kept_strides).push_back(stride);
  }
  const int64_t kept = element_count(reducer.kept_sizes);
  view.expect_count(view.write(0), by_columns ? kept * inner : kept);
  const int threads = view.read(0).count() < 16384 ? 1 : view.threads();
  return kernel_of([reducer = std::move(reducer), kept, inner, by_columns, threads, y = view.out<Y>(0)] {
    if (!by_columns) {
      parallel_for(threads, kept, [&](int64_t i, int) {
        narrow(y[i], static_cast<Wide<Y>>(reducer.runs(i, inner) * reducer.factor));
      });
      return;
    }
    const int64_t pieces = (inner + kColumns - 1) / kColumns;
    parallel_for(threads, kept * pieces, [&](int64_t i, int) {
      const int64_t first = i % pieces * kColumns, n = std::min(kColumns, inner - first);
      double sums[kColumns];
      reducer.columns(i / pieces, first, n, sums);
      for (int64_t j = 0; j < n; ++j)
        narrow(y[i / pieces * inner + first + j], static_cast<Wide<Y>>(sums[j] * reducer.factor));
    });
  });
}

template <class T>
std::unique_ptr<Kernel> reduce(const OpView& view) {
  return view.write(0).dtype == Dtype::f32 ? reduce_into<T, float>(view) : reduce_into<T, bf16>(view);
}

template <class T>
void softmax_row(const T* x, T* y, int64_t n, bool log) {
  with_lanes([=]<int lanes>() PRUN_INLINED {
    const float most = largest_lanes<lanes>(x, n);
    const float sum =
        sum_lanes<lanes>(n, [=](const auto& at) PRUN_INLINED { return exp_f32(Floats<lanes>(at.load(x) - most)); });
    const float by = log ? most + std::log(sum) : 1.0f / sum;
    for_lanes<lanes>(n, [=](const auto& at) PRUN_INLINED {
      const Floats<lanes> value = at.load(x);
      at.store(y, log ? Floats<lanes>(value - by) : Floats<lanes>(exp_f32(Floats<lanes>(value - most)) * by));
    });
  });
}

template <class T>
void softmax_grad_row(const T* y, const T* dy, T* dx, int64_t n, bool log) {
  const auto sum = static_cast<float>(log ? sum_range([](auto g) PRUN_INLINED { return g; }, n, dy)
                                          : sum_range([](auto v, auto g) PRUN_INLINED { return v * g; }, n, y, dy));
  with_lanes([=]<int lanes>() PRUN_INLINED {
    for_lanes<lanes>(n, [=](const auto& at) PRUN_INLINED {
      const Floats<lanes> value = at.load(y), g = at.load(dy);
      at.store(dx, log ? Floats<lanes>(g - exp_f32(value) * sum) : Floats<lanes>(value * (g - sum)));
    });
  });
}

template <class T>
std::unique_ptr<Kernel> softmax(const OpView& view) {
  const int64_t n = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  view.expect_count(view.write(0), rows * n);
  const Attrs& attrs = view.attrs();
  const sdk::KeyRules rules{n, attrs.integer("causal") != 0, attrs.integer("window")};
  const Shape& shape = view.read(0).shape;
  const int64_t queries = shape.size() > 1 ? shape[shape.size() - 2] : 1;
  return kernel_of([x = view.in<T>(0), y = view.out<T>(0), n, rows, rules, queries, log = attrs.integer("log") != 0,
                    threads = rows * n < 4096 ? 1 : view.threads()] {
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const sdk::KeyRange seen = rules.of(r % queries, nullptr);
        T* row = y + r * n;
        std::fill(row, row + seen.first, T{});
        std::fill(row + seen.end, row + n, T{});
        if (seen.first < seen.end) softmax_row(x + r * n + seen.first, row + seen.first, seen.end - seen.first, log);
      }
    });
  });
}

template <class T>
std::unique_ptr<Kernel> softmax_grad(const OpView& view) {
  const int64_t n = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  for (size_t i : {0, 1}) view.expect_count(view.read(i), rows * n);
  return kernel_of([y = view.in<T>(0), dy = view.in<T>(1), dx = view.out<T>(0), n, rows,
                    log = view.attrs().integer("log") != 0, threads = rows * n < 4096 ? 1 : view.threads()] {
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) softmax_grad_row(y + r * n, dy + r * n, dx + r * n, n, log);
    });
  });
}

// Sums [outer, n, inner] along n, from the end if `reverse`.
template <class T>
std::unique_ptr<Kernel> cumsum(const OpView& view) {
  const Shape& shape = view.read(0).shape;
  const int64_t dim = view.attrs().integer("dim"), n = shape[dim];
  const int64_t inner = element_count(Shape(shape.begin() + dim + 1, shape.end()));
  const int64_t columns = n == 0 ? 0 : view.read(0).count() / n;
  view.expect_count(view.write(0), columns * n);
  return kernel_of([x = view.in<T>(0), y = view.out<T>(0), n, inner, columns,
                    reverse = view.attrs().integer("reverse") != 0, threads = view.threads()] {
    const int64_t pieces = (inner + kColumns - 1) / kColumns;
    parallel_for(columns * n < 16384 ? 1 : threads, columns / inner * pieces, [&](int64_t i, int) {
      const int64_t first = i % pieces * kColumns, width = std::min(kColumns, inner - first);
      double sums[kColumns] = {};
      for (int64_t step = 0; step < n; ++step) {
        const int64_t row = (i / pieces * n + (reverse ? n - 1 - step : step)) * inner + first;
        for (int64_t j = 0; j < width; ++j) {
          sums[j] += static_cast<double>(widen(x[row + j]));
          narrow(y[row + j], static_cast<Wide<T>>(sums[j]));
        }
      }
    });
  });
}

}  // namespace

const Family reduction_kernels = {{"reduce_dims", PRUN_FLOAT_MAKER(read(0), reduce<T>(view))},
                                  {"softmax", PRUN_FLOAT_MAKER(read(0), softmax<T>(view))},
                                  {"softmax_grad", PRUN_FLOAT_MAKER(read(0), softmax_grad<T>(view))},
                                  {"cumsum", PRUN_FLOAT_MAKER(read(0), cumsum<T>(view))}};

}  // namespace prun::cpu
