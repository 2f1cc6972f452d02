// Views that the compiler could not make an alias: copies between strided layouts, and the two sums of their
// derivatives. A sum adds in the order of its operand, so that results do not depend on the number of threads.
#include <algorithm>
#include <cstring>

#include "device/ids.h"
#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/strided_copy.h"

namespace prun::cpu {
namespace {

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

Shape list_of(const OpView& view, const char* name) {
  Shape list;
  for (const double one : view.attrs().numbers(name)) list.push_back(static_cast<int64_t>(one));
  return list;
}

void expect_same_dtype(const OpView& view) {
  PRUN_CHECK(view.write(0).dtype == view.read(0).dtype, std::string(dtype_name(view.write(0).dtype)));
}

std::unique_ptr<Kernel> copies(const OpView& view, const std::vector<StridedDim>& dims, int64_t from, int64_t to) {
  expect_same_dtype(view);
  const int64_t bytes = dtype_bytes(view.read(0).dtype);
  return kernel_of([copy = StridedCopy(dims, bytes), x = bytes_in(view, 0) + from * bytes,
                    y = bytes_out(view, 0) + to * bytes, threads = view.threads()] { copy.run(threads, x, y); });
}

std::unique_ptr<Kernel> make_reshape(const OpView& view) {
  view.expect_count(view.write(0), view.read(0).count());
  if (bytes_in(view, 0) == bytes_out(view, 0)) return kernel_of([] {});
  return copies(view, {{view.read(0).count(), 1, 1}}, 0, 0);
}

std::unique_ptr<Kernel> make_permute(const OpView& view) {
  const Tensor &x = view.read(0), &y = view.write(0);
  const Shape order = list_of(view, "order");
  const std::vector<int64_t> from = strides_of(x.shape), to = strides_of(y.shape);
  PRUN_CHECK(order.size() == x.shape.size() && y.shape.size() == x.shape.size(), shape_text(y.shape));
  std::vector<StridedDim> dims;
  for (size_t i = 0; i < order.size(); i++) {
    PRUN_CHECK(y.shape[i] == x.shape[order[i]], shape_text(y.shape));
    dims.push_back({y.shape[i], from[order[i]], to[i]});
  }
  return copies(view, dims, 0, 0);
}

std::unique_ptr<Kernel> make_expand(const OpView& view) {
  const Tensor &x = view.read(0), &y = view.write(0);
  const std::vector<int64_t> from = strides_of(x.shape), to = strides_of(y.shape);
  PRUN_CHECK(y.shape.size() == x.shape.size(), shape_text(y.shape));
  std::vector<StridedDim> dims;
  for (size_t i = 0; i < to.size(); i++) dims.push_back({y.shape[i], x.shape[i] == y.shape[i] ? from[i] : 0, to[i]});
  return copies(view, dims, 0, 0);
}

// A tensor as [outer, size, inner] around the op's dim.
struct AroundDim {
  int64_t outer = 1, size, inner = 1;
  AroundDim(const OpView& view, const Tensor& tensor) {
    const int64_t dim = view.attrs().integer("dim");
    PRUN_CHECK(dim >= 0 && dim < std::ssize(tensor.shape), shape_text(tensor.shape));
    size = tensor.shape[dim];
    for (int64_t i = 0; i < std::ssize(tensor.shape); i++) (i < dim ? outer : inner) *= i == dim ? 1 : tensor.shape[i];
  }
};

std::unique_ptr<Kernel> make_slice(const OpView& view) {
  const AroundDim x(view, view.read(0)), y(view, view.write(0));
  const int64_t start = view.attrs().integer("start");
  PRUN_CHECK(x.outer == y.outer && x.inner == y.inner && start >= 0 && start + y.size <= x.size,
             shape_text(view.write(0).shape));
  return copies(view, {{x.outer, x.size * x.inner, y.size * y.inner}, {y.size * y.inner, 1, 1}}, start * x.inner, 0);
}

template <class T>
std::unique_ptr<Kernel> pad(const OpView& view) {
  const AroundDim x(view, view.read(0)), y(view, view.write(0));
  const int64_t before = view.attrs().integer("before"), after = y.size - x.size - before;
  PRUN_CHECK(x.outer == y.outer && x.inner == y.inner && before >= 0 && after >= 0, shape_text(view.write(0).shape));
  T value{};
  narrow(value,
         static_cast<std::conditional_t<std::is_same_v<T, bf16>, float, double>>(view.attrs().number("value", 0)));
  return kernel_of([=, from = view.in<T>(0), to = view.out<T>(0), threads = view.threads()] {
    const int64_t own = x.size * x.inner, row = y.size * y.inner;
    parallel_for(y.outer * row < 16384 ? 1 : threads, y.outer, [&](int64_t i, int) {
      T* at = to + i * row;
      std::fill(at, at + before * y.inner, value);
      std::memcpy(at + before * y.inner, from + i * own, own * sizeof(T));
      std::fill(at + before * y.inner + own, at + row, value);
    });
  });
}

std::unique_ptr<Kernel> make_concat(const OpView& view) {
  expect_same_dtype(view);
  const AroundDim y(view, view.write(0));
  const int64_t bytes = dtype_bytes(view.write(0).dtype);
  struct Part {
    StridedCopy copy;
    const std::byte* from;
    std::byte* to;
  };
  std::vector<Part> parts;
  int64_t done = 0;
  for (size_t i = 0; i < view.reads(); i++) {
    const AroundDim x(view, view.read(i));
    PRUN_CHECK(x.outer == y.outer && x.inner == y.inner, shape_text(view.read(i).shape));
    parts.push_back({StridedCopy({{x.outer, x.size * x.inner, y.size * y.inner}, {x.size * x.inner, 1, 1}}, bytes),
                     bytes_in(view, i), bytes_out(view, 0) + done * y.inner * bytes});
    done += x.size;
  }
  PRUN_CHECK(done == y.size, shape_text(view.write(0).shape));
  return kernel_of([parts = std::move(parts), threads = view.threads()] {
    for (const Part& part : parts) part.copy.run(threads, part.from, part.to);
  });
}

constexpr int64_t kSumColumns = 256;  // sums of a task, in registers and the L1 cache

// Adds n elements, `stride` apart, to sums.
template <class T>
PRUN_CLONES static void add_strided(const T* x, int64_t stride, int64_t n, float* sums) {
  if (stride != 1) {
    for (int64_t j = 0; j < n; ++j) sums[j] += load(x[j * stride]);
    return;
  }
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) sums[j] += load(x[j]);
}

template <class T>
PRUN_CLONES static double sum_strided(const T* x, int64_t stride, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; ++j) sum += static_cast<double>(load(x[j * stride]));
  return sum;
}

// Calls f(offset) for each index of `dims` in order.
template <class F>
void each_offset(const std::vector<StridedDim>& dims, const F& f) {
  int64_t count = 1;
  for (const StridedDim& dim : dims) count *= dim.size;
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = i, offset = 0;
    for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) offset += at % dim->size * dim->from, at /= dim->size;
    f(offset);
  }
}

// dx is the sum of dy over the dims in which dx has size 1. The last kept dim is cut into columns.
template <class T>
std::unique_ptr<Kernel> expand_grad(const OpView& view) {
  const Tensor &dy = view.read(0), &dx = view.write(0);
  PRUN_CHECK(dx.shape.size() == dy.shape.size(), shape_text(dx.shape));
  const std::vector<int64_t> from = strides_of(dy.shape), to = strides_of(dx.shape);
  std::vector<StridedDim> kept, summed;
  for (size_t i = 0; i < from.size(); i++)
    if (dy.shape[i] > 1) (dx.shape[i] == 1 ? summed : kept).push_back({dy.shape[i], from[i], to[i]});
  StridedDim last{1, 1, 1}, run{1, 1, 0};
  if (!kept.empty()) last = kept.back(), kept.pop_back();
  const bool by_runs = !summed.empty() && summed.back().from == 1;  // otherwise by columns
  if (by_runs) run = summed.back(), summed.pop_back();
  int64_t outer = 1;
  for (const StridedDim& dim : kept) outer *= dim.size;
  const int64_t parts = (last.size + kSumColumns - 1) / kSumColumns;
  return kernel_of([=, x = view.in<T>(0), y = view.out<T>(0), count = dy.count(), threads = view.threads()] {
    parallel_for(count < 16384 ? 1 : threads, outer * parts, [&](int64_t task, int) {
      int64_t at = task / parts, read = 0, write = 0;
      for (auto dim = kept.rbegin(); dim != kept.rend(); ++dim) {
        read += at % dim->size * dim->from, write += at % dim->size * dim->to;
        at /= dim->size;
      }
      const int64_t begin = task % parts * kSumColumns, n = std::min(kSumColumns, last.size - begin);
      read += begin * last.from, write += begin * last.to;
      if (by_runs) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          each_offset(summed,
                      [&](int64_t offset) { sum += sum_strided(x + read + j * last.from + offset, 1, run.size); });
          narrow(y[write + j * last.to], static_cast<float>(sum));
        }
        return;
      }
      float sums[kSumColumns] = {};
      each_offset(summed, [&](int64_t offset) { add_strided(x + read + offset, last.from, n, sums); });
      for (int64_t j = 0; j < n; ++j) narrow(y[write + j * last.to], sums[j]);
    });
  });
}

// Rows by ids: x [outer, rows, inner], ids [outer, n], y [outer, n, inner].
struct Rows {
  int64_t outer, n, rows, inner;
  Rows(const OpView& view, const Tensor& ids, const Tensor& x, const Tensor& y) {
    const size_t shared = ids.shape.size() - 1;
    PRUN_CHECK(!ids.shape.empty() && x.shape.size() > shared, shape_text(x.shape));
    outer = element_count({ids.shape.begin(), ids.shape.end() - 1});
    n = ids.shape.back();
    rows = x.shape[shared];
    inner = element_count({x.shape.begin() + static_cast<int64_t>(shared) + 1, x.shape.end()});
    view.expect_count(x, outer * rows * inner);
    view.expect_count(y, outer * n * inner);
  }
};

std::unique_ptr<Kernel> make_gather_rows(const OpView& view) {
  expect_same_dtype(view);
  const Rows at(view, view.read(1), view.read(0), view.write(0));
  const int64_t bytes = at.inner * dtype_bytes(view.read(0).dtype);
  return kernel_of([at, bytes, x = bytes_in(view, 0), ids = view.in<int32_t>(1), y = bytes_out(view, 0),
                    threads = view.threads()] {
    require_ids(ids, at.outer * at.n, at.rows, kRowOutside);
    parallel_for(at.outer * at.n * bytes < 65536 ? 1 : threads, at.outer * at.n,
                 [&](int64_t i, int) { std::memcpy(y + i * bytes, x + (i / at.n * at.rows + ids[i]) * bytes, bytes); });
  });
}

// A task is one row of dx in columns of kSumColumns, so that bf16 is summed as f32 without scratch.
template <class T>
std::unique_ptr<Kernel> gather_rows_grad(const OpView& view) {
  const Rows at(view, view.read(0), view.write(0), view.read(1));
  return kernel_of([at, ids = view.in<int32_t>(0), dy = view.in<T>(1), dx = view.out<T>(0), threads = view.threads()] {
    parallel_for(at.outer * at.rows * at.inner < 16384 ? 1 : threads, at.outer * at.rows, [&](int64_t task, int) {
      const int64_t outer = task / at.rows, row = task % at.rows;
      const int32_t* own = ids + outer * at.n;
      for (int64_t begin = 0; begin < at.inner; begin += kSumColumns) {
        float sums[kSumColumns] = {};
        const int64_t n = std::min(kSumColumns, at.inner - begin);
        for (int64_t i = 0; i < at.n; ++i)
          if (own[i] == row) add_strided(dy + (outer * at.n + i) * at.inner + begin, 1, n, sums);
        for (int64_t j = 0; j < n; ++j) narrow(dx[task * at.inner + begin + j], sums[j]);
      }
    });
  });
}

}  // namespace

const Family view_kernels = {
    {"reshape", make_reshape, Accepts::numbers},
    {"permute", make_permute, Accepts::numbers},
    {"slice", make_slice, Accepts::numbers},
    {"pad", PRUN_NUMBER_MAKER(read(0), pad<T>(view)), Accepts::numbers},
    {"concat", make_concat, Accepts::numbers},
    {"expand", make_expand, Accepts::numbers},
    {"expand_grad", PRUN_FLOAT_MAKER(read(0), expand_grad<T>(view))},
    {"gather_rows", make_gather_rows, Accepts::numbers},
    {"gather_rows_grad", PRUN_FLOAT_MAKER(read(1), gather_rows_grad<T>(view))},
};

}  // namespace prun::cpu
