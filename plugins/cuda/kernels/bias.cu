// bias: y = x + b over the last dim; bias_grad: the sums over rows, in two stages of a fixed order.
#include <algorithm>

#include "block.cuh"
#include "launch.h"
#include "sums.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kSteps = 4;  // packs per thread

// Adds the bias; a block has a run of kThreads·kSteps packs. N is kPack, or 1 if rows are not aligned.
template <class T, int N>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    add_bias(const T* x, const T* b, T* y, int64_t packs, int width) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kSteps + threadIdx.x;
  const int in_row = width / N;
  int column = static_cast<int>(first % in_row);
  Pack<T, N> loaded[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    if (const int64_t pack = first + step * kThreads; pack < packs)
      loaded[step] = reinterpret_cast<const Pack<T, N>*>(x)[pack];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t pack = first + step * kThreads;
    if (pack >= packs) break;
    float bias[N], sum[N];
    load(b + column * N, bias);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = loaded[step].wide(i) + bias[i];
    store(y + pack * N, sum);
    column = (column + kThreads) % in_row;
  }
}

template <class T, int N>
std::unique_ptr<Kernel> bias_kernel(const T* x, const T* b, T* y, int64_t count, int64_t width) {
  const int64_t packs = count / N;
  return kernel_of([=, blocks = blocks_for(packs, kThreads * kSteps, INT32_MAX)](cudaStream_t stream) {
    launch(add_bias<T, N>, blocks, kThreads, 0, stream, x, b, y, packs, static_cast<int>(width));
  });
}

std::unique_ptr<Kernel> make_bias(const OpView& view) {
  const Tensor x = view.read(0);
  const int64_t width = x.shape.last();
  view.expect_count(view.read(1), width);
  view.expect_count(view.write(0), x.count());
  if (width > INT32_MAX) throw Failure(PRUN_ENOTSUP, "bias: a row has more than 2^31 - 1 elements");
  return with_float(x.dtype, [&]<class T>() {
    const T *from = view.in<T>(0), *b = view.in<T>(1);
    T* to = view.out<T>(0);
    return rows_aligned(width, from, b, to) ? bias_kernel<T, kPack<T>>(from, b, to, x.count(), width)
                                            : bias_kernel<T, 1>(from, b, to, x.count(), width);
  });
}

// Sums over rows. A block has the columns of 32 packs and a run of rows; each of its warps adds every eighth row.
template <class T, int N>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    sum_rows(const T* x, const float* added, float* parts, int64_t rows, int64_t width) {
  __shared__ __align__(16) float shared[kWarps][kWarp * N];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first = rows * blockIdx.y / gridDim.y, last = rows * (blockIdx.y + 1) / gridDim.y;
  const int64_t begin = int64_t{blockIdx.x} * kWarp * N, column = begin + lane * N;
  float sums[N] = {};
  if (column < width) {
#pragma unroll 4
    for (int64_t row = first + warp; row < last; row += kWarps) {
      float values[N];
      load(x + row * width + column, values);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += values[i];
    }
  }
  store_shared(&shared[warp][lane * N], sums);
  __syncthreads();
  for (int i = threadIdx.x; i < kWarp * N && begin + i < width; i += kThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shared[w][i];
    if (added != nullptr) sum += added[begin + i];
    parts[blockIdx.y * width + begin + i] = sum;
  }
}

// The blocks along columns, 32 packs each, and the runs along rows: enough blocks to fill a large GPU, with at least 64
// rows each.
struct Tiles {
  int64_t columns, runs;
  Tiles(int64_t rows, int64_t width, int pack) : columns((width + kWarp * pack - 1) / (kWarp * pack)) {
    runs =
        std::clamp<int64_t>((1056 + columns - 1) / std::max<int64_t>(columns, 1), 1, std::max<int64_t>(rows / 64, 1));
  }
};

template <class T, int N>
void sum_rows_of(cudaStream_t stream, const T* x, int64_t rows, int64_t width, float* workspace, const float* added,
                 float* sums) {
  const Tiles tiles(rows, width, N);
  const bool whole = tiles.runs == 1;
  const dim3 grid(static_cast<unsigned>(tiles.columns), static_cast<unsigned>(tiles.runs));
  launch(sum_rows<T, N>, grid, kThreads, 0, stream, x, whole ? added : nullptr, whole ? sums : workspace, rows, width);
  if (!whole) finish_columns(stream, workspace, tiles.runs, width, sums, nullptr, added);
}

size_t workspace(const OpView& view) {
  const Tensor dy = view.read(0);
  return column_sums_bytes(dy.shape.rows(), dy.shape.last());
}

std::unique_ptr<Kernel> make_bias_grad(const OpView& view) {
  const Tensor dy = view.read(0);
  view.expect_count(view.write(0), dy.shape.last());
  if (dy.dtype != PRUN_F32 && dy.dtype != PRUN_BF16) no_kernel_for(dy.dtype);
  const bool adds = view.kind() == "bias_grad_add";
  if (adds) view.expect_count(view.read(1), dy.shape.last());
  return kernel_of([dy = dy.ptr, dtype = dy.dtype, rows = dy.shape.rows(), width = dy.shape.last(),
                    added = adds ? view.in<float>(1) : nullptr, db = view.out<float>(0),
                    parts = scratch(view, workspace(view))](cudaStream_t stream) {
    column_sums(stream, dy, dtype, rows, width, static_cast<float*>(parts.data), db, added);
  });
}

const KernelFamily kFamily = {
    {"bias", make_bias}, {"bias_grad", make_bias_grad, workspace}, {"bias_grad_add", make_bias_grad, workspace}};

}  // namespace

size_t column_sums_bytes(int64_t rows, int64_t width) {
  const int64_t runs = std::max(Tiles(rows, width, kPack<bf16>).runs, Tiles(rows, width, kPack<float>).runs);
  return static_cast<size_t>(runs * width) * sizeof(float);
}

void column_sums(cudaStream_t stream, const void* x, int dtype, int64_t rows, int64_t width, float* workspace,
                 float* sums, const float* added) {
  with_float(dtype, [&]<class T>() {
    const T* from = static_cast<const T*>(x);
    if (rows_aligned(width, from))
      sum_rows_of<T, kPack<T>>(stream, from, rows, width, workspace, added, sums);
    else
      sum_rows_of<T, 1>(stream, from, rows, width, workspace, added, sums);
  });
}

}  // namespace prun::cuda
