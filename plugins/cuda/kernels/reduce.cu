// reduce_dims and expand_grad: sums, means and maxima over some dims, in f64.
//
// Few results of many elements are divided into parts, so that every multiprocessor has work; the parts are in the
// op's workspace, and their number depends on sizes alone, so results are bitwise identical in every run.
#include <algorithm>

#include "block.cuh"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kAhead = 4;                // packs per thread that are loaded before the first is added
constexpr int64_t kWantedBlocks = 1056;  // enough to fill a large GPU
constexpr int64_t kLeastTerms = 2048;    // elements of a part of a row
constexpr int64_t kLeastRows = 64;       // elements of a part of a column
constexpr int64_t kThreadTerms = 16;     // most elements of a row that a thread reduces
constexpr int64_t kWarpTerms = 1024;     // most elements of a row that a warp reduces

enum : int { kKept = 0, kReduced = 1 };

// Sizes and strides of the dims that remain, and of those that are reduced. Adjacent dims are merged.
struct Reduction {
  int64_t sizes[2][8] = {}, strides[2][8] = {}, count[2] = {1, 1};
  int dims[2] = {0, 0};
  bool largest = false;

  void add(int which, int64_t size, int64_t stride) {
    count[which] *= size;
    if (size == 1) return;
    int& n = dims[which];
    if (n > 0 && strides[which][n - 1] == size * stride) {
      sizes[which][n - 1] *= size, strides[which][n - 1] = stride;
      return;
    }
    sizes[which][n] = size, strides[which][n++] = stride;
  }
  // Returns the stride of the last dim, and its size.
  int64_t step(int which) const { return dims[which] == 0 ? 0 : strides[which][dims[which] - 1]; }
  int64_t run(int which) const { return dims[which] == 0 ? 1 : sizes[which][dims[which] - 1]; }
  // Returns whether n neighbours along the last dim are neighbours in memory, at multiples of n.
  bool packs(int which, int64_t n) const {
    if (step(which) != 1 || run(which) % n != 0) return false;
    for (int w = 0; w < 2; ++w)
      for (int d = 0; d < dims[w]; ++d)
        if ((w != which || d + 1 < dims[w]) && strides[w][d] % n != 0) return false;
    return true;
  }
  __device__ int64_t offset(int which, int64_t at) const {
    int64_t sum = 0;
#pragma unroll 1
    for (int d = dims[which] - 1; d > 0; --d) {
      const int64_t rest = at / sizes[which][d];
      sum += (at - rest * sizes[which][d]) * strides[which][d];
      at = rest;
    }
    return sum + at * strides[which][0];
  }
};

// Combines two elements; a maximum keeps NaNs.
struct Combine {
  bool largest;
  __device__ double identity() const { return largest ? -std::numeric_limits<double>::infinity() : 0.0; }
  __device__ double operator()(double a, double b) const { return !largest ? a + b : b > a || b != b ? b : a; }
};

__device__ __forceinline__ int64_t within(int64_t at, int64_t end) { return at < end ? at : end - 1; }

template <class Y>
__device__ Y rounded(double x) {
  if constexpr (std::is_same_v<Y, double>)
    return x;
  else
    return narrow<Y>(static_cast<float>(x));
}

// The last dim is reduced. A warp, or with kBlock a block, computes a part of a result: y[result][part].
template <class T, class Y, int N, bool kBlock>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    reduce_rows(const T* x, Y* y, Reduction r, int64_t parts, double factor) {
  constexpr int kTeam = kBlock ? kThreads : kWarp;
  const Combine combine{r.largest};
  const int member = static_cast<int>(threadIdx.x) % kTeam;
  const int64_t packs = r.count[kReduced] / N;
  for (int64_t item = first_item() / kTeam; item < r.count[kKept] * parts; item += item_stride() / kTeam) {
    const int64_t result = item / parts, part = item - result * parts;
    const int64_t first = packs * part / parts, last = packs * (part + 1) / parts;
    const T* from = x + r.offset(kKept, result);
    double value[1] = {combine.identity()};
    for (int64_t pack = first + member; pack < last; pack += kAhead * kTeam) {
      int64_t at[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) at[i] = r.offset(kReduced, within(pack + i * kTeam, last) * N);
      Pack<T, N> held[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) held[i] = load_pack<N>(from + at[i]);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (pack + i * kTeam >= last) break;
#pragma unroll
        for (int n = 0; n < N; ++n) value[0] = combine(value[0], held[i].wide(n));
      }
    }
    if constexpr (kBlock)
      block_reduce(value, combine.identity(), combine);
    else
      value[0] = warp_reduce(value[0], combine);
    if (member == 0) y[item] = rounded<Y>(value[0] * factor);
  }
}

// The last dim remains, or a reduced one is short. A lane has N neighbouring results, and a warp adds all of their
// elements, or with kBlock every eighth of a part of them: y[result][part].
template <class T, class Y, int N, bool kBlock>
__global__ void __launch_bounds__(kThreads, 3)
    reduce_columns(const T* x, Y* y, Reduction r, int64_t parts, double factor) {
  __shared__ double sums[kBlock ? kWarps : 1][kBlock ? N * kWarp : 1];
  constexpr int kTeam = kBlock ? kThreads : kWarp, kStep = kBlock ? kWarps : 1;
  const Combine combine{r.largest};
  const int lane = static_cast<int>(threadIdx.x) % kWarp, turn = kBlock ? static_cast<int>(threadIdx.x) / kWarp : 0;
  const int64_t tiles = (r.count[kKept] + N * kWarp - 1) / (N * kWarp);
  for (int64_t item = first_item() / kTeam; item < tiles * parts; item += item_stride() / kTeam) {
    const int64_t tile = item / parts, part = item - tile * parts, begin = tile * N * kWarp, column = begin + lane * N;
    const int64_t first = r.count[kReduced] * part / parts, last = r.count[kReduced] * (part + 1) / parts;
    double values[N];
#pragma unroll
    for (int n = 0; n < N; ++n) values[n] = combine.identity();
    if (column < r.count[kKept]) {
      const T* from = x + r.offset(kKept, column);
      for (int64_t row = first + turn; row < last; row += kAhead * kStep) {
        int64_t at[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) at[i] = r.offset(kReduced, within(row + i * kStep, last));
        Pack<T, N> held[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) held[i] = load_pack<N>(from + at[i]);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (row + i * kStep >= last) break;
#pragma unroll
          for (int n = 0; n < N; ++n) values[n] = combine(values[n], held[i].wide(n));
        }
      }
    }
    if constexpr (!kBlock) {
      if (column < r.count[kKept]) {
#pragma unroll
        for (int n = 0; n < N; ++n) y[column + n] = rounded<Y>(values[n] * factor);
      }
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) sums[turn][n * kWarp + lane] = values[n];
      __syncthreads();
      if (const int i = static_cast<int>(threadIdx.x); i < N * kWarp && begin + i < r.count[kKept]) {
        double value = combine.identity();
#pragma unroll
        for (int w = 0; w < kWarps; ++w) value = combine(value, sums[w][i % N * kWarp + i / N]);
        y[(begin + i) * parts + part] = rounded<Y>(value * factor);
      }
      __syncthreads();
    }
  }
}

// A warp combines the parts of a result.
template <class Y>
__global__ void __launch_bounds__(kThreads)
    combine_parts(const double* values, Y* y, Reduction r, int64_t parts, double factor) {
  const Combine combine{r.largest};
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t result = first_item() / kWarp; result < r.count[kKept]; result += item_stride() / kWarp) {
    double value = combine.identity();
#pragma unroll 4
    for (int64_t part = lane; part < parts; part += kWarp) value = combine(value, values[result * parts + part]);
    value = warp_reduce(value, combine);
    if (lane == 0) y[result] = rounded<Y>(value * factor);
  }
}

// The form of a reduction's kernel.
struct Form {
  bool rows = false, block = false;
  int64_t parts = 1;

  Form(const Reduction& r, int64_t pack) {
    const int64_t results = r.count[kKept], terms = r.count[kReduced];
    rows = terms > kThreadTerms && (r.dims[kKept] == 0 || r.step(kReduced) < r.step(kKept));
    block = terms > (rows ? kWarpTerms : kThreadTerms);
    const int64_t groups = rows ? results : (results + kWarp * pack - 1) / (kWarp * pack);
    const int64_t most = terms / (rows ? kLeastTerms : kLeastRows);
    if (block && groups > 0)
      parts = std::clamp<int64_t>((kWantedBlocks + groups - 1) / groups, 1, std::max<int64_t>(most, 1));
  }
};

template <class T, class Y, int N>
void launch_form(cudaStream_t stream, const Form& form, const Reduction& r, const T* x, Y* y, double factor) {
  const int64_t groups = form.rows ? r.count[kKept] : (r.count[kKept] + kWarp * N - 1) / (kWarp * N);
  const unsigned blocks = blocks_for(groups * form.parts, form.block ? 1 : kWarps, INT32_MAX);
  const auto kernel = form.rows ? (form.block ? reduce_rows<T, Y, N, true> : reduce_rows<T, Y, N, false>)
                                : (form.block ? reduce_columns<T, Y, N, true> : reduce_columns<T, Y, N, false>);
  launch(kernel, blocks, kThreads, 0, stream, x, y, r, form.parts, factor);
}

template <class T, class Y, int N>
std::unique_ptr<Kernel> reduction(const OpView& view, const Reduction& r, const Form& form, double factor) {
  const T* x = view.in<T>(0);
  Y* y = view.out<Y>(0);
  if (r.count[kKept] == 0) return kernel_of([](cudaStream_t) {});
  if (form.parts == 1)
    return kernel_of([=](cudaStream_t stream) { launch_form<T, Y, N>(stream, form, r, x, y, factor); });
  const Scratch memory = scratch(view, static_cast<size_t>(r.count[kKept] * form.parts) * sizeof(double));
  return kernel_of([=, parts = static_cast<double*>(memory.data), keep = memory.owned](cudaStream_t stream) {
    launch_form<T, double, N>(stream, form, r, x, parts, 1.0);
    launch(combine_parts<Y>, blocks_for(r.count[kKept], kWarps), kThreads, 0, stream, parts, y, r, form.parts, factor);
  });
}

Reduction dims_of(const OpView& view) {
  Reduction r;
  const Shape x = view.read(0).shape, y = view.write(0).shape;
  view.expect(x.rank() <= 8, shape_text(x) + " has more than 8 dims");
  const bool expanded = view.kind() == "expand_grad";
  view.expect(!expanded || x.rank() == y.rank(), shape_text(y));
  const std::span<const int64_t> dims = view.integers("dims");
  int64_t stride = x.count();
  for (size_t d = 0; d < x.rank(); ++d) {
    stride = x[d] == 0 ? 0 : stride / x[d];
    const bool reduced =
        expanded ? x[d] != y[d] : std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
    r.add(reduced ? kReduced : kKept, x[d], stride);
  }
  r.largest = !expanded && view.text("op") == "max";
  view.expect_count(view.write(0), r.count[kKept]);
  return r;
}

// Returns the elements of a pack, or 1 if the shape has no packs.
template <class T>
int64_t pack_of(const Reduction& r) {
  const int which = Form(r, 1).rows ? kReduced : kKept;
  return r.packs(which, kPack<T>) ? kPack<T> : 1;
}

template <class T, class Y>
std::unique_ptr<Kernel> reduction_of(const OpView& view) {
  const Reduction r = dims_of(view);
  const bool mean = view.kind() == "reduce_dims" && view.text("op") == "mean";
  const double factor = mean ? 1.0 / static_cast<double>(r.count[kReduced]) : 1.0;
  // The parts are those of the shape, whether or not its address allows packs, because the workspace is.
  const Form form(r, pack_of<T>(r));
  if (pack_of<T>(r) > 1 && aligned(view.in<T>(0))) return reduction<T, Y, kPack<T>>(view, r, form, factor);
  return reduction<T, Y, 1>(view, r, form, factor);
}

size_t workspace(const OpView& view) {
  const Reduction r = dims_of(view);
  const int64_t parts = with_float(view.read(0).dtype, [&]<class T>() { return Form(r, pack_of<T>(r)).parts; });
  return parts == 1 ? 0 : static_cast<size_t>(r.count[kKept] * parts) * sizeof(double);
}

std::unique_ptr<Kernel> make_reduction(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    return view.write(0).dtype == PRUN_F32 ? reduction_of<T, float>(view) : reduction_of<T, T>(view);
  });
}

const KernelFamily kFamily = {{"reduce_dims", make_reduction, workspace}, {"expand_grad", make_reduction, workspace}};

}  // namespace
}  // namespace prun::cuda
