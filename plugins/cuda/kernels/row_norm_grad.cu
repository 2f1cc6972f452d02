// The gradients of layernorm and rmsnorm in one pass over x and dy. Each block has a run of rows. On every GPU the
// number of blocks is that of an H200's resident blocks, so that results are bitwise identical. A thread accumulates
// its columns' parts of dgamma and dbeta in registers over all of its rows. A block stores the sum of its threads in
// the workspace, and sums.h adds the blocks' sums. Another gradient may be added to dx; dx is rounded before, so
// results are bitwise identical to the two separate ops.
//
// With z = (x − mean)·rstd and g = dy·gamma: dx = rstd·(g − mean(g) − z·mean(g·z)). In rmsnorm mean = 0, and mean(g) is
// omitted.
//
// The kernel is memory-bound only if enough warps are resident and an element costs about 25 instructions. So a thread
// has 12 elements of a row: a multiprocessor then has registers for 24 warps of layernorm in bf16, or 32 of rmsnorm.
#include <algorithm>

#include "cuda/device/context.h"
#include "row_norm.cuh"
#include "sums.h"

namespace prun::cuda {
namespace {

constexpr int kElements = 4;  // elements per pack
// Packs per thread: with 4, rows are wider, but fewer registers remain, so gamma is loaded for each row.
constexpr int kGradPacks = 3, kWidePacks = 4;
constexpr int kMultiprocessors = 132;  // an H200's, used on every GPU, because the order of sums depends on it
constexpr int kLooseBlocks = 2 * kMultiprocessors;

// Threads of a multiprocessor, which are also those of the largest block: 128 registers each in f32, 64 in bf16, 80 for
// layernorm, which has a second sum.
template <class T, bool centred>
inline constexpr int kMostThreads = std::is_same_v<T, float> ? 512
                                    : centred                ? 768
                                                             : 1024;

template <class T>
struct Backward {
  const T *x, *dy, *gamma, *other;  // other: null if nothing is added
  const float *mean, *scale;        // mean: null in rmsnorm
  T* dx;
  float* parts;  // [blocks][dgamma, dbeta][width], in rmsnorm [blocks][width]
  int64_t rows, width;
};

// Reduces Σ g·z and Σ g of each team's row. With teams of more than a warp all threads of the block must call it,
// alternately with `parts` of even and odd rounds, so that one barrier per round also keeps a warp from overwriting
// parts that are being read.
template <int kWarps>
__device__ __forceinline__ void team_sums(float (&x)[2], int team, float2 (&parts)[kWarps]) {
#pragma unroll
  for (float& value : x) value = warp_sum(value);
  if (team == kWarp) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = team / kWarp, first = warp / warps * warps;
  if (threadIdx.x % kWarp == 0) parts[warp] = {x[0], x[1]};
  __syncthreads();
  x[0] = x[1] = 0;
#pragma unroll 1
  for (int i = 0; i < warps; ++i) x[0] += parts[first + i].x, x[1] += parts[first + i].y;
}

// Computes dx from a row's statistics. The bf16 form has the fewest instructions: bf16 has 8 bits of mantissa, so
// folding the mean into an FMA loses no bit of x. FMAs are explicit, because otherwise two kernels could contract them
// differently and round differently.
template <class T, bool centred>
struct Row {
  float mean, scale, shift;  // shift: -mean·scale
  float of_x, constant;      // in bf16: dx = of_x·x + scale·gamma·dy + constant
  float means[2];            // means of g·z and g

  __device__ __forceinline__ Row(float row_mean, float row_scale)
      : mean(row_mean), scale(row_scale), shift(-row_mean * row_scale) {}
  __device__ __forceinline__ float z(float x) const {
    if constexpr (!centred)
      return x * scale;
    else if constexpr (std::is_same_v<T, bf16>)
      return __fmaf_rn(x, scale, shift);
    else
      return (x - mean) * scale;
  }
  __device__ __forceinline__ void take(float mean_gz, float mean_g) {
    means[0] = mean_gz, means[1] = centred ? mean_g : 0.0f;
    of_x = -means[0] * scale * scale;
    constant = centred ? __fmaf_rn(-means[0] * scale, shift, -means[1] * scale) : 0.0f;
  }
  __device__ __forceinline__ float dx(float x, float dy, float gamma) const {
    if constexpr (std::is_same_v<T, bf16>)
      return __fmaf_rn(dy, __fmul_rn(gamma, scale), __fmaf_rn(x, of_x, constant));
    else
      return __fmul_rn(__fmaf_rn(-z(x), means[0], __fmaf_rn(dy, gamma, -means[1])), scale);
  }
};

// Computes the gradients. Each warp of a team has a run of packs, so that a thread's packs are a constant apart.
template <class T, bool centred, bool added, int kPacks>
__global__ void __launch_bounds__(kMostThreads<T, centred>) held_rows(Backward<T> b, int team) {
  constexpr int N = kElements, kSums = centred ? 2 : 1, kStride = kWarp * N;
  constexpr bool kHoldsGamma = kPacks == kGradPacks;
  __shared__ float2 warp_parts[2][kMostThreads<T, centred> / kWarp];
  const int mine = threadIdx.x / team, teams = blockDim.x / team, lane = threadIdx.x % kWarp;
  const int column = (static_cast<int>(threadIdx.x) % team / kWarp * kWarp * kPacks + lane) * N;
  const int64_t first = b.rows * blockIdx.x / gridDim.x, last = b.rows * (blockIdx.x + 1) / gridDim.x;
  const float inverse_width = 1.0f / static_cast<float>(b.width);
  bool inside[kPacks];
  Pack<T, N> held[kHoldsGamma ? kPacks : 1];
#pragma unroll
  for (int h = 0; h < kPacks; ++h) {
    inside[h] = column + h * kStride < b.width;
    if constexpr (kHoldsGamma) held[h] = inside[h] ? load_pack<N>(b.gamma + column + h * kStride) : Pack<T, N>{};
  }
  const auto gamma_of = [&](int h) {
    if constexpr (kHoldsGamma)
      return held[h];
    else
      return load_pack<N>(b.gamma + column + h * kStride);
  };
  float sums[kSums][kPacks][N] = {};
  int round = 0;
  for (int64_t begin = first; begin < last; begin += teams, round ^= 1) {
    const int64_t at = begin + mine, from = at * b.width + column;
    const bool filled = at < last;  // in the last round, teams without a row wait with the others
    Pack<T, N> x[kPacks], dy[kPacks], other[added ? kPacks : 1];
    const T *x_from = b.x + from, *dy_from = b.dy + from, *other_from = b.other + from;
    float mean = 0, scale = 0;
    if (filled) {
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        if (!inside[h]) continue;
        x[h] = load_pack<N>(x_from + h * kStride);
        dy[h] = load_pack<N>(dy_from + h * kStride);
        if constexpr (added) other[h] = load_pack<N>(other_from + h * kStride);
      }
      if constexpr (centred) mean = b.mean[at];
      scale = b.scale[at];
    }
    Row<T, centred> row(mean, scale);
    float means[2] = {};  // means of g·z and g
    if (filled) {
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        if (!inside[h]) continue;
        const Pack<T, N> gamma = gamma_of(h);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float d = dy[h].wide(i), dz = d * row.z(x[h].wide(i)), weight = gamma.wide(i);
          sums[0][h][i] += dz;
          means[0] = __fmaf_rn(dz, weight, means[0]);
          if constexpr (centred) {
            sums[1][h][i] += d;
            means[1] = __fmaf_rn(d, weight, means[1]);
          }
        }
      }
    }
    team_sums(means, team, warp_parts[round]);
    row.take(means[0] * inverse_width, means[1] * inverse_width);
    if (!filled) continue;
    T* to = b.dx + from;
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
      if (!inside[h]) continue;
      const Pack<T, N> gamma = gamma_of(h);
      float dx[N];
#pragma unroll
      for (int i = 0; i < N; ++i) dx[i] = row.dx(x[h].wide(i), dy[h].wide(i), gamma.wide(i));
      Pack<T, N> rounded = narrowed<T, N>(dx);
      if constexpr (added) {
#pragma unroll
        for (int i = 0; i < N; ++i) dx[i] = __fadd_rn(rounded.wide(i), other[h].wide(i));
        rounded = narrowed<T, N>(dx);
      }
      store_pack(to + h * kStride, rounded);
    }
  }
  // The teams add their sums in order; the last one writes the result.
  PRUN_SHARED(memory);
  float* shared = reinterpret_cast<float*>(memory);  // [kSums][width]
  float* part = b.parts + blockIdx.x * kSums * b.width;
  for (int turn = 0; turn < teams; ++turn) {
    if (turn > 0) __syncthreads();
    if (turn != mine) continue;
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
      if (!inside[h]) continue;
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
        const int64_t at = s * b.width + column + h * kStride;
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

// Computes the gradients of rows of any width at any address. A block reads its rows twice, and adds to its part of the
// workspace.
template <class T, bool centred, bool added>
__global__ void __launch_bounds__(kLooseThreads) loose_rows(Backward<T> b) {
  const int64_t first = b.rows * blockIdx.x / gridDim.x, last = b.rows * (blockIdx.x + 1) / gridDim.x;
  float* part = b.parts + blockIdx.x * (centred ? 2 : 1) * b.width;
  for (int64_t at = first; at < last; ++at) {
    const T *x = b.x + at * b.width, *dy = b.dy + at * b.width;
    Row<T, centred> row(centred ? b.mean[at] : 0.0f, b.scale[at]);
    float means[2] = {};
    for (int64_t i = threadIdx.x; i < b.width; i += kLooseThreads) {
      const float z = row.z(widen(x[i])), d = widen(dy[i]), g = d * widen(b.gamma[i]);
      means[0] += g * z;
      means[1] += g;
      part[i] = (at == first ? 0.0f : part[i]) + d * z;
      if constexpr (centred) part[b.width + i] = (at == first ? 0.0f : part[b.width + i]) + d;
    }
    block_reduce(means, 0.0f, Add{});
    row.take(means[0] / static_cast<float>(b.width), means[1] / static_cast<float>(b.width));
    for (int64_t i = threadIdx.x; i < b.width; i += kLooseThreads) {
      float dx = row.dx(widen(x[i]), widen(dy[i]), widen(b.gamma[i]));
      if constexpr (added) dx = __fadd_rn(widen(narrow<T>(dx)), widen(b.other[at * b.width + i]));
      b.dx[at * b.width + i] = narrow<T>(dx);
    }
  }
}

// The division of a shape's rows among blocks; the workspace has a part for each block.
struct Division {
  int64_t team, teams, blocks;  // threads of a row, rows of a block at a time, blocks; team 0: no team can hold a row
  int packs = kGradPacks;

  template <class T, bool centred>
  static Division held(int64_t rows, int64_t width) {
    const auto team_with = [&](int64_t packs) {
      const int64_t columns = kWarp * packs * kElements;  // of a warp
      return (width + columns - 1) / columns * kWarp;
    };
    const int packs = team_with(kGradPacks) <= kMostThreads<T, centred> ? kGradPacks : kWidePacks;
    const int64_t team = team_with(packs);
    if (team > kMostThreads<T, centred> || rows == 0) return {0, 0, 0};
    const int64_t teams = std::max<int64_t>(1, 256 / team), at_a_time = kMostThreads<T, centred> / (teams * team);
    return {team, teams, std::min(kMultiprocessors * at_a_time, (rows + teams - 1) / teams), packs};
  }
  static Division loose(int64_t rows) { return {0, 1, std::min<int64_t>(kLooseBlocks, rows)}; }
};

template <bool centred>
size_t workspace(const OpView& view) {
  const Shape shape = view.read(0).shape;
  const int64_t rows = shape.rows(), width = shape.last();
  const int64_t held =
      with_float(view.read(0).dtype, [&]<class T>() { return Division::held<T, centred>(rows, width).blocks; });
  const int64_t blocks = std::max({held, Division::loose(rows).blocks, int64_t{1}});
  return static_cast<size_t>(blocks * (centred ? 2 : 1) * width) * sizeof(float);
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

  const Division whole = Division::held<T, centred>(b.rows, b.width);
  const bool held = whole.team > 0 && rows_aligned(b.width, b.x, b.dy, b.gamma, b.other, b.dx);
  const Division d = held ? whole : Division::loose(b.rows);
  const int64_t threads = held ? d.team * d.teams : kLooseThreads, blocks = d.blocks;
  const size_t shared = d.teams > 1 ? static_cast<size_t>(kSums * b.width) * sizeof(float) : 0;
  return kernel_of([=, keep = parts.owned](cudaStream_t stream) {
    const unsigned grid = static_cast<unsigned>(blocks), block = static_cast<unsigned>(threads);
    if (blocks > 0 && held)
      launch(
          d.packs == kGradPacks ? held_rows<T, centred, added, kGradPacks> : held_rows<T, centred, added, kWidePacks>,
          grid, block, shared, stream, b, static_cast<int>(d.team));
    else if (blocks > 0)
      launch(loose_rows<T, centred, added>, grid, block, 0, stream, b);
    finish_columns(stream, b.parts, blocks, b.width, dgamma, dbeta);
  });
}

template <bool centred, bool added>
std::unique_ptr<Kernel> make_backward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return backward<T, centred, added>(view); });
}

const KernelFamily kFamily = {{"layernorm_grad", make_backward<true, false>, workspace<true>},
                              {"rmsnorm_grad", make_backward<false, false>, workspace<false>},
                              {"layernorm_grad_add", make_backward<true, true>, workspace<true>},
                              {"rmsnorm_grad_add", make_backward<false, true>, workspace<false>}};

}  // namespace
}  // namespace prun::cuda
