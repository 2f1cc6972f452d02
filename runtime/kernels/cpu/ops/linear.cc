// linear and its two gradients as GEMMs, and the bias gradient as column sums; the bias alone, for a GEMM whose result
// is all-reduced first; and the GEMMs with a fused gelu epilogue that other devices have, here in two passes.
#include <fmt/format.h>

#include <cstring>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/vector_math.h"

namespace prun::cpu {
namespace {

Activation activation_of(const Attrs& attrs) {
  const std::string act = attrs.text("act");
  if (act == "relu") return Activation::relu;
  if (act == "gelu") return attrs.text("approximate", "tanh") == "none" ? Activation::gelu_erf : Activation::gelu_tanh;
  PRUN_CHECK(act.empty(), act);
  return Activation::none;
}

bool transposed(const OpView& view) { return view.attrs().integer("transpose") != 0; }

GemmShape linear_shape(const OpView& view) {
  const Tensor &x = view.read(0), &w = view.read(1), &y = view.write(0);
  GemmShape s;
  s.m = row_count(x.shape);
  s.k = last_dim(x.shape);
  s.n = last_dim(y.shape);
  s.transpose_b = transposed(view);
  s.input = x.dtype;
  s.output = y.dtype;
  s.bias = view.reads() > 2;
  s.activation = activation_of(view.attrs());
  s.threads = view.threads();
  view.expect_count(w, s.k * s.n);
  view.expect_count(y, s.m * s.n);
  if (s.bias) view.expect_count(view.read(2), s.n);
  return s;
}

// dx [rows, K] = dy [rows, N] · wᵀ, w stored [K, N] unless the forward op was transposed.
GemmShape linear_dx_shape(const OpView& view) {
  const Tensor &dy = view.read(0), &w = view.read(1), &dx = view.write(0);
  GemmShape s;
  s.m = row_count(dy.shape);
  s.k = last_dim(dy.shape);
  s.n = last_dim(dx.shape);
  s.transpose_b = !transposed(view);
  s.input = dy.dtype;
  s.output = dx.dtype;
  s.threads = view.threads();
  view.expect_count(w, s.k * s.n);
  view.expect_count(dx, s.m * s.n);
  return s;
}

// dw [K, N] = xᵀ·dy, or [N, K] = dyᵀ·x: the first operand is always the transposed one.
GemmShape linear_dw_shape(const OpView& view) {
  const Tensor &x = view.read(0), &dy = view.read(1), &dw = view.write(0);
  const bool swap = transposed(view);
  GemmShape s;
  s.m = last_dim(swap ? dy.shape : x.shape);
  s.n = last_dim(swap ? x.shape : dy.shape);
  s.k = row_count(x.shape);
  s.transpose_a = true;
  s.input = x.dtype;
  s.output = dw.dtype;
  s.threads = view.threads();
  PRUN_CHECK(row_count(dy.shape) == s.k, fmt::format("x {} dy {}", shape_text(x.shape), shape_text(dy.shape)));
  view.expect_count(dw, s.m * s.n);
  if (view.writes() > 1) view.expect_count(view.write(1), last_dim(dy.shape));
  return s;
}

// Computes sums[j] = Σ over rows of dy[row][j], j < width. Sums of blocks of rows limit the rounding error of a long
// sum; their order depends on the sizes only.
constexpr int64_t kBlockOfRows = 32, kColumns = 256;
template <int lanes>
constexpr int kInRegisters = lanes == 16 ? 16 : 8;  // vectors of accumulators
// Sums as many columns as the registers hold, so that memory is read in long runs.
template <int lanes, class T>
PRUN_INLINE void sum_columns_in_registers(const T* dy, int64_t rows, int64_t stride, float* sums) {
  constexpr int kVectors = kInRegisters<lanes>, kPairs = kVectors / 2;
  using V = Floats<lanes>;
  V total[kVectors] = {};
  for (int64_t first = 0; first < rows; first += kBlockOfRows) {
    V block[kVectors] = {};
    const int64_t last = std::min(first + kBlockOfRows, rows);
    for (int64_t row = first; row < last; ++row) {
      const T* from = dy + row * stride;
#pragma GCC unroll 8
      for (int i = 0; i < kPairs; ++i) {
        if constexpr (std::is_same_v<T, bf16>) {
          block[2 * i] += load_even<lanes>(from + 2 * i * lanes);
          block[2 * i + 1] += load_odd<lanes>(from + 2 * i * lanes);
        } else {
          block[2 * i] += load_lanes<lanes>(from + 2 * i * lanes);
          block[2 * i + 1] += load_lanes<lanes>(from + (2 * i + 1) * lanes);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) total[i] += block[i];
  }
  constexpr bool kPaired = std::is_same_v<T, bf16>;  // even and odd columns are separate vectors
  for (int i = 0; i < kVectors; ++i)
    for (int j = 0; j < lanes; ++j) sums[kPaired ? (i / 2 * lanes + j) * 2 + i % 2 : i * lanes + j] = total[i][j];
}

template <class T>
void column_sums(const T* dy, int64_t rows, int64_t stride, int64_t width, float* sums) {
  with_lanes([=]<int lanes>() PRUN_INLINED {
    constexpr int64_t kStep = kInRegisters<lanes> * lanes;
    int64_t j = 0;
    for (; j + kStep <= width; j += kStep) sum_columns_in_registers<lanes>(dy + j, rows, stride, sums + j);
    for_lanes<lanes>(width - j, [=](auto at) PRUN_INLINED {
      Floats<lanes> total = {};
      for (int64_t first = 0; first < rows; first += kBlockOfRows) {
        Floats<lanes> block = {};
        const int64_t last = std::min(first + kBlockOfRows, rows);
        for (int64_t row = first; row < last; ++row) block += at.load(dy + row * stride + j);
        total += block;
      }
      at.store(sums + j, total);
    });
  });
}

template <class T>
void all_column_sums(int threads, const T* dy, int64_t rows, int64_t width, float* sums) {
  parallel_for(threads, (width + kColumns - 1) / kColumns, [&](int64_t i, int) {
    const int64_t begin = i * kColumns;
    column_sums(dy + begin, rows, width, std::min(kColumns, width - begin), sums + begin);
  });
}

template <class T>
PRUN_CLONES void add_bias(const T* x, const T* b, T* y, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) store(y[row * width + j], load(x[row * width + j]) + load(b[j]));
  }
}

// The GEMM of reads `a` and `b` into write `c`, and its scratch.
struct ScratchGemm {
  ScratchGemm(const OpView& view, const GemmShape& shape, size_t a, size_t b, size_t c)
      : scratch(view.scratch(gemm_scratch_bytes(shape))),
        gemm(shape, bytes_in(view, a), bytes_in(view, b), shape.bias ? bytes_in(view, 2) : nullptr, bytes_out(view, c),
             scratch.data) {}
  void run() const { gemm.run(); }
  void run_and_sum(float* sums) const { gemm.run_and_sum(sums); }
  Scratch scratch;
  Gemm gemm;
};

template <GemmShape (*shape)(const OpView&)>
std::unique_ptr<Kernel> gemm_kernel(const OpView& view) {
  return kernel_of([gemm = ScratchGemm(view, shape(view), 0, 1, 0)] { gemm.run(); });
}

template <GemmShape (*shape)(const OpView&)>
int64_t workspace(const OpView& view) {
  return gemm_scratch_bytes(shape(view));
}

template <class T>
std::unique_ptr<Kernel> linear_gelu(const OpView& view) {
  const GemmShape shape = linear_shape(view);
  view.expect_count(view.write(1), shape.m * shape.n);
  return kernel_of([gemm = ScratchGemm(view, shape, 0, 1, 1), pre = view.out<T>(1), y = view.out<T>(0),
                    n = view.write(0).count(), threads = view.threads()] {
    gemm.run();
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
      map_range([](auto x) PRUN_INLINED { return gelu_tanh<T>(x); }, end - begin, y + begin, pre + begin);
    });
  });
}

template <class T>
std::unique_ptr<Kernel> linear_dx_gelu(const OpView& view) {
  const GemmShape shape = linear_dx_shape(view);
  view.expect_count(view.read(2), shape.m * shape.n);
  return kernel_of([gemm = ScratchGemm(view, shape, 0, 1, 0), pre = view.in<T>(2), dx = view.out<T>(0),
                    n = view.write(0).count(), threads = view.threads()] {
    gemm.run();
    const auto times_derivative = [](auto g, auto x) PRUN_INLINED { return g * gelu_tanh_derivative<T>(x); };
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
      map_range(times_derivative, end - begin, dx + begin, dx + begin, pre + begin);
    });
  });
}

template <class T>
std::unique_ptr<Kernel> linear_dw(const OpView& view) {
  const GemmShape shape = linear_dw_shape(view);
  const bool swap = transposed(view);
  ScratchGemm gemm(view, shape, swap ? 1 : 0, swap ? 0 : 1, 0);
  if (view.writes() < 2) return kernel_of([gemm = std::move(gemm)] { gemm.run(); });
  if (!swap && gemm.gemm.takes_sums())
    return kernel_of([gemm = std::move(gemm), db = view.out<float>(1)] { gemm.run_and_sum(db); });
  return kernel_of([gemm = std::move(gemm), dy = view.in<T>(1), db = view.out<float>(1), rows = shape.k,
                    width = last_dim(view.read(1).shape), threads = view.threads()] {
    gemm.run();
    all_column_sums(threads, dy, rows, width, db);
  });
}

// The gradient of a microbatch has scratch after that of the GEMM, because an accumulating GEMM would round differently
// from the two ops.
int64_t fresh_bytes(int64_t count) { return round_up(count * int64_t{sizeof(float)}, kAlignBytes); }

int64_t dw_add_workspace(const OpView& view) {
  const GemmShape shape = linear_dw_shape(view);
  return round_up(gemm_scratch_bytes(shape), kAlignBytes) + fresh_bytes(shape.m * shape.n) +
         fresh_bytes(last_dim(view.read(1).shape));
}

template <class T>
std::unique_ptr<Kernel> linear_dw_add(const OpView& view) {
  const GemmShape shape = linear_dw_shape(view);
  const int64_t width = last_dim(view.read(1).shape), count = shape.m * shape.n;
  const bool swap = transposed(view), bias = view.writes() > 1;
  view.expect_count(view.read(2), count);
  if (bias) view.expect_count(view.read(3), width);
  const Scratch scratch = view.scratch(dw_add_workspace(view));
  float* fresh = reinterpret_cast<float*>(scratch.data + round_up(gemm_scratch_bytes(shape), kAlignBytes));
  float* fresh_bias = fresh + fresh_bytes(count) / int64_t{sizeof(float)};
  Gemm gemm(shape, bytes_in(view, swap ? 1 : 0), bytes_in(view, swap ? 0 : 1), nullptr, fresh, scratch.data);
  const bool sums = bias && !swap && gemm.takes_sums();
  return kernel_of([=, gemm = std::move(gemm), owned = scratch.owned, dy = view.in<T>(1), sum = view.in<float>(2),
                    dw = view.out<float>(0), bias_sum = bias ? view.in<float>(3) : nullptr,
                    db = bias ? view.out<float>(1) : nullptr, rows = shape.k, threads = view.threads()] {
    sums ? gemm.run_and_sum(fresh_bias) : gemm.run();
    if (bias && !sums) all_column_sums(threads, dy, rows, width, fresh_bias);
    add_floats(threads, sum, fresh, dw, count);
    if (bias) add_floats(threads, bias_sum, fresh_bias, db, width);
  });
}

template <class T>
std::unique_ptr<Kernel> bias(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), width);
  view.expect_count(view.write(0), rows * width);
  return kernel_of([x = view.in<T>(0), b = view.in<T>(1), y = view.out<T>(0), rows, width, threads = view.threads()] {
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) {
      add_bias(x + begin * width, b, y + begin * width, end - begin, width);
    });
  });
}

template <class T>
std::unique_ptr<Kernel> bias_grad(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  view.expect_count(view.write(0), width);
  return kernel_of([dy = view.in<T>(0), db = view.out<float>(0), rows, width, threads = view.threads()] {
    all_column_sums(threads, dy, rows, width, db);
  });
}

int64_t bias_grad_add_workspace(const OpView& view) { return fresh_bytes(last_dim(view.read(0).shape)); }

template <class T>
std::unique_ptr<Kernel> bias_grad_add(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), width);
  view.expect_count(view.write(0), width);
  const Scratch scratch = view.scratch(bias_grad_add_workspace(view));
  return kernel_of([scratch, dy = view.in<T>(0), sum = view.in<float>(1), db = view.out<float>(0), rows, width,
                    threads = view.threads()] {
    float* fresh = reinterpret_cast<float*>(scratch.data);
    all_column_sums(threads, dy, rows, width, fresh);
    add_floats(threads, sum, fresh, db, width);
  });
}

}  // namespace

const Family linear_kernels = {
    {"linear", gemm_kernel<linear_shape>, Accepts::floats, workspace<linear_shape>},
    {"linear_dx", gemm_kernel<linear_dx_shape>, Accepts::floats, workspace<linear_dx_shape>},
    {"linear_dw", PRUN_FLOAT_MAKER(read(1), linear_dw<T>(view)), Accepts::floats, workspace<linear_dw_shape>},
    {"linear_dw_add", PRUN_FLOAT_MAKER(read(1), linear_dw_add<T>(view)), Accepts::floats, dw_add_workspace},
    {"linear_gelu", PRUN_FLOAT_MAKER(read(0), linear_gelu<T>(view)), Accepts::floats, workspace<linear_shape>},
    {"linear_dx_gelu", PRUN_FLOAT_MAKER(read(0), linear_dx_gelu<T>(view)), Accepts::floats, workspace<linear_dx_shape>},
    {"bias", PRUN_FLOAT_MAKER(read(0), bias<T>(view))},
    {"bias_grad", PRUN_FLOAT_MAKER(read(0), bias_grad<T>(view))},
    {"bias_grad_add", PRUN_FLOAT_MAKER(read(0), bias_grad_add<T>(view)), Accepts::floats, bias_grad_add_workspace},
};

}  // namespace prun::cpu
