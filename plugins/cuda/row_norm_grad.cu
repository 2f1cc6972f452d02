// The gradients of layernorm and rmsnorm in one pass over x and dy. As many blocks as an H200 runs at a time take a run
// of rows each, on every GPU, so that all have the same bits; a thread keeps its columns' parts of dgamma and dbeta in
// registers over all of its rows, a block leaves their sum in the workspace, and sums.h adds those. Another gradient
// may be added to dx, which is rounded before: the bits are those of the two ops apart.
//
// With z = (x − mean)·rstd and g = dy·gamma: dx = rstd·(g − mean(g) − z·mean(g·z)); rmsnorm's has mean = 0 and no
// mean(g).
#include <algorithm>

#include "context.h"
#include "row_norm.cuh"
#include "sums.h"

namespace prun::cuda {
namespace {

constexpr int kGradPacks = 3;          // with two sums for each element, what 128 registers hold
constexpr int kMostThreads = 512;      // of 128 registers: one block of these, or two of 256, fill a multiprocessor
constexpr int kMultiprocessors = 132;  // of an H200; the same on every GPU, as the order of sums depends on it
constexpr int kMostBlocks = 320;       // sizes the workspace, which has to be the same on every machine

template <class T>
struct Backward {
  const T *x, *dy, *gamma, *other;  // no other where nothing is added
  const float *mean, *scale;        // no mean in rmsnorm
  T* dx;
  float* parts;  // [blocks][dgamma, dbeta][width], in rmsnorm [blocks][width]
  int64_t rows, width;
};

// Σ g·z and Σ g of each team's row. With teams of more than a warp all threads of the block call it.
__device__ __forceinline__ void team_sums(float (&x)[2], int team) {
  __shared__ float2 parts[kMostThreads / kWarp];
#pragma unroll
  for (float& value : x) value = warp_sum(value);
  if (team == kWarp) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = team / kWarp, first = warp / warps * warps;
  __syncthreads();  // the row before this one has been read
  if (threadIdx.x % kWarp == 0) parts[warp] = {x[0], x[1]};
  __syncthreads();
  x[0] = x[1] = 0;
  for (int i = 0; i < warps; ++i) x[0] += parts[first + i].x, x[1] += parts[first + i].y;
}

// dx, of means of g·z and g. What is one multiply-add is said, or kernels that differ elsewhere might differ here.
__device__ __forceinline__ float derivative(float dy, float gamma, float z, const float (&means)[2], float scale) {
  return __fmul_rn(__fmaf_rn(-z, means[0], __fmaf_rn(dy, gamma, -means[1])), scale);
}
// dx as it would be stored, and another gradient.
template <class T>
__device__ __forceinline__ float plus(float dx, T other) {
  return __fadd_rn(widen(narrow<T>(dx)), widen(other));
}

template <class T, bool centred, bool added>
__global__ void __launch_bounds__(kMostThreads) held_rows(Backward<T> b, int team) {
  constexpr int N = kPack<T>, kSums = centred ? 2 : 1;
  const int member = threadIdx.x % team, mine = threadIdx.x / team, teams = blockDim.x / team;
  const int packs = static_cast<int>(b.width / N);
  const int64_t first = b.rows * blockIdx.x / gridDim.x, last = b.rows * (blockIdx.x + 1) / gridDim.x;
  const float inverse_width = 1.0f / static_cast<float>(b.width);
  float sums[kSums][kGradPacks][N] = {};
  for (int64_t begin = first; begin < last; begin += teams) {
    const int64_t row = begin + mine;
    const bool filled = row < last;  // of the last round's teams some have no row, but they wait with the others
    Pack<T, N> x[kGradPacks], dy[kGradPacks], other[added ? kGradPacks : 1];
    float mean = 0, scale = 0;
    if (filled) {
#pragma unroll
      for (int h = 0; h < kGradPacks; ++h) {
        const int pack = member + h * team;
        if (pack >= packs) break;
        x[h] = reinterpret_cast<const Pack<T, N>*>(b.x + row * b.width)[pack];
        dy[h] = reinterpret_cast<const Pack<T, N>*>(b.dy + row * b.width)[pack];
        if constexpr (added) other[h] = reinterpret_cast<const Pack<T, N>*>(b.other + row * b.width)[pack];
      }
      if constexpr (centred) mean = b.mean[row];
      scale = b.scale[row];
    }
    float means[2] = {};  // of g·z and g
    if (filled) {
#pragma unroll
      for (int h = 0; h < kGradPacks; ++h) {
        const int pack = member + h * team;
        if (pack >= packs) break;
        float gamma[N];
        load(b.gamma + pack * N, gamma);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float z = (widen(x[h].v[i]) - mean) * scale, d = widen(dy[h].v[i]), g = d * gamma[i];
          means[0] += g * z;
          means[1] += g;
          sums[0][h][i] += d * z;
          if constexpr (centred) sums[1][h][i] += d;
        }
      }
    }
    team_sums(means, team);
    means[0] *= inverse_width;
    means[1] *= centred ? inverse_width : 0.0f;
    if (filled) {
#pragma unroll
      for (int h = 0; h < kGradPacks; ++h) {
        const int pack = member + h * team;
        if (pack >= packs) break;
        float gamma[N], dx[N];
        load(b.gamma + pack * N, gamma);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float z = (widen(x[h].v[i]) - mean) * scale;
          dx[i] = derivative(widen(dy[h].v[i]), gamma[i], z, means, scale);
          if constexpr (added) dx[i] = plus(dx[i], other[h].v[i]);
        }
        store(b.dx + row * b.width + pack * N, dx);
      }
    }
  }
  // The teams add what they have, one after the other; the last one writes it.
  PRUN_SHARED(memory);
  float* shared = reinterpret_cast<float*>(memory);  // [kSums][width]
  float* part = b.parts + blockIdx.x * kSums * b.width;
  for (int turn = 0; turn < teams; ++turn) {
    if (turn > 0) __syncthreads();
    if (turn != mine) continue;
#pragma unroll
    for (int h = 0; h < kGradPacks; ++h) {
      const int pack = member + h * team;
      if (pack >= packs) break;
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
        const int64_t at = s * b.width + pack * N;
        float before[N] = {};
        if (turn > 0) load(shared + at, before);
#pragma unroll
        for (int i = 0; i < N; ++i) before[i] += sums[s][h][i];
        if (turn < teams - 1)
          store_shared(shared + at, before);
        else
          store(part + at, before);
      }
    }
  }
}

// Rows of any width at any address: a block reads its rows twice, and adds to its part of the workspace.
template <class T, bool centred, bool added>
__global__ void __launch_bounds__(kLooseThreads) loose_rows(Backward<T> b) {
  const int64_t first = b.rows * blockIdx.x / gridDim.x, last = b.rows * (blockIdx.x + 1) / gridDim.x;
  float* part = b.parts + blockIdx.x * (centred ? 2 : 1) * b.width;
  for (int64_t row = first; row < last; ++row) {
    const T *x = b.x + row * b.width, *dy = b.dy + row * b.width;
    const float mean = centred ? b.mean[row] : 0.0f, scale = b.scale[row];
    float means[2] = {};
    for (int64_t i = threadIdx.x; i < b.width; i += kLooseThreads) {
      const float z = (widen(x[i]) - mean) * scale, d = widen(dy[i]), g = d * widen(b.gamma[i]);
      means[0] += g * z;
      means[1] += g;
      part[i] = (row == first ? 0.0f : part[i]) + d * z;
      if constexpr (centred) part[b.width + i] = (row == first ? 0.0f : part[b.width + i]) + d;
    }
    block_reduce(means, 0.0f, Add{});
    means[0] /= static_cast<float>(b.width);
    means[1] = centred ? means[1] / static_cast<float>(b.width) : 0.0f;
    for (int64_t i = threadIdx.x; i < b.width; i += kLooseThreads) {
      const float z = (widen(x[i]) - mean) * scale;
      float dx = derivative(widen(dy[i]), widen(b.gamma[i]), z, means, scale);
      if constexpr (added) dx = plus(dx, b.other[row * b.width + i]);
      b.dx[row * b.width + i] = narrow<T>(dx);
    }
  }
}

int64_t most_blocks(int64_t rows) { return std::clamp<int64_t>(rows, 1, kMostBlocks); }

template <bool centred>
size_t workspace(const OpView& view) {
  const Shape shape = view.read(0).shape;
  return static_cast<size_t>(most_blocks(shape.rows()) * (centred ? 2 : 1) * shape.last()) * sizeof(float);
}

template <class T, bool centred, bool added>
std::unique_ptr<Kernel> backward(const OpView& view) {
  constexpr int kSums = centred ? 2 : 1;
  Backward<T> b{};
  b.rows = view.read(0).shape.rows(), b.width = view.read(0).shape.last();
  view.expect_count(view.read(1), b.rows * b.width);
  view.expect_count(view.read(2), b.width);
  for (size_t i = 0; i < kSums; ++i) view.expect_count(view.read(3 + i), b.rows);
  if (added) view.expect_count(view.read(3 + kSums), b.rows * b.width);
  view.expect_count(view.write(0), b.rows * b.width);
  for (size_t i = 0; i < kSums; ++i) view.expect_count(view.write(1 + i), b.width);
  b.x = view.in<T>(0), b.dy = view.in<T>(1), b.gamma = view.in<T>(2), b.dx = view.out<T>(0);
  if (centred) b.mean = view.in<float>(3);
  b.scale = view.in<float>(centred ? 4 : 3);
  if (added) b.other = view.in<T>(3 + kSums);
  float *dgamma = view.out<float>(1), *dbeta = centred ? view.out<float>(2) : nullptr;
  const Scratch parts = scratch(view, workspace<centred>(view));
  b.parts = static_cast<float*>(parts.data);

  const int64_t team = team_of<T>(b.width, kGradPacks);
  const bool held = rows_aligned(b.width, b.x, b.dy, b.gamma, b.other, b.dx) && team <= kMostThreads;
  const int64_t threads = held ? std::max<int64_t>(team, 256) : kLooseThreads, teams = held ? threads / team : 1;
  const int64_t at_a_time = kMultiprocessors * (kMostThreads / threads);
  const int64_t blocks = std::min({most_blocks(b.rows), at_a_time, (b.rows + teams - 1) / teams});
  const size_t shared = teams > 1 ? static_cast<size_t>(kSums * b.width) * sizeof(float) : 0;
  return kernel_of([=, keep = parts.owned](cudaStream_t stream) {
    const unsigned grid = static_cast<unsigned>(blocks), block = static_cast<unsigned>(threads);
    if (blocks > 0 && held)
      launch(held_rows<T, centred, added>, grid, block, shared, stream, b, static_cast<int>(team));
    else if (blocks > 0)
      launch(loose_rows<T, centred, added>, grid, block, 0, stream, b);
    finish_columns(stream, b.parts, blocks, b.width, dgamma, dbeta);
  });
}

template <bool centred, bool added>
std::unique_ptr<Kernel> make_backward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return backward<T, centred, added>(view); });
}

constexpr KernelEntry kEntries[] = {{"layernorm_grad", make_backward<true, false>, workspace<true>},
                                    {"rmsnorm_grad", make_backward<false, false>, workspace<false>},
                                    {"layernorm_grad_add", make_backward<true, true>, workspace<true>},
                                    {"rmsnorm_grad_add", make_backward<false, true>, workspace<false>}};

}  // namespace

std::span<const KernelEntry> row_norm_grad_kernels() { return kEntries; }

}  // namespace prun::cuda
