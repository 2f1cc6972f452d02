// layernorm and rmsnorm over the last dim, of a tensor or of the sum of two. A warp, or for wide rows a block, holds
// its row in registers, so that memory is read once although the variance is computed from centred values. Statistics
// are f32.
//
// A sum is rounded before it is normalized, so results are bitwise identical to the two separate ops.
#include <algorithm>
#include <cfloat>

#include "row_norm.cuh"

namespace prun::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;  // warps per block if a warp has a row of its own
constexpr int kMostThreads = 1024;
constexpr int kHeldPacks = 4;  // packs per thread

template <class T>
struct Forward {
  const T *x, *residual, *gamma, *beta;  // residual: null if nothing is added; beta: null in rmsnorm
  T *y, *sum;
  float *mean, *scale;  // mean: null in rmsnorm
  int64_t rows, width;
  float eps;
};

// An f32 sum that overflows, for example of squares beyond 1.8e19, is recomputed from elements scaled by this factor.
constexpr float kSmaller = 0x1p-80f, kLarger = 0x1p80f;
__device__ __forceinline__ bool overflowed(float x) { return !(fabsf(x) <= FLT_MAX); }

// `sum_of(factor)` returns the sum of factor times each element of the row, over the team.
template <class Sum>
__device__ __forceinline__ float mean_of(int64_t width, const Sum& sum_of) {
  const float mean = sum_of(1.0f) / static_cast<float>(width);
  return overflowed(mean) ? sum_of(kSmaller) / static_cast<float>(width) * kLarger : mean;
}
// `squares_of(factor)` returns the sum of the squares of factor times each centred element of the row.
template <class Squares>
__device__ __forceinline__ float scale_of(int64_t width, float eps, const Squares& squares_of) {
  const float square = squares_of(1.0f) / static_cast<float>(width) + eps;
  return overflowed(square) ? kSmaller / sqrtf(squares_of(kSmaller) / static_cast<float>(width)) : 1.0f / sqrtf(square);
}

template <bool centred>
__device__ __forceinline__ float normalized(float x, float mean, float scale, float gamma, float beta) {
  return centred ? (x - mean) * scale * gamma + beta : x * scale * gamma;
}

// A team is the warp, or with `one_row` all threads of the block.
template <bool one_row>
__device__ __forceinline__ float team_sum(float x) {
  if constexpr (one_row)
    return block_sum(x);
  else
    return warp_sum(x);
}

template <class T, bool centred, bool one_row, bool added>
__global__ void __launch_bounds__(one_row ? kMostThreads : kWarpsPerBlock* kWarp) held_rows(Forward<T> f) {
  constexpr int N = kPack<T>;
  const int member = one_row ? threadIdx.x : threadIdx.x % kWarp, members = one_row ? blockDim.x : kWarp;
  const int64_t row = one_row ? blockIdx.x : int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;
  if (row >= f.rows) return;  // a whole team returns
  const int packs = static_cast<int>(f.width / N);
  const auto* from = reinterpret_cast<const Pack<T, N>*>(f.x + row * f.width);
  Pack<T, N> held[kHeldPacks];
#pragma unroll
  for (int h = 0; h < kHeldPacks; ++h)
    if (const int pack = member + h * members; pack < packs) held[h] = from[pack];
  if constexpr (added) {
    const auto* residual = reinterpret_cast<const Pack<T, N>*>(f.residual + row * f.width);
    Pack<T, N> other[kHeldPacks];
#pragma unroll
    for (int h = 0; h < kHeldPacks; ++h)
      if (const int pack = member + h * members; pack < packs) other[h] = residual[pack];
#pragma unroll
    for (int h = 0; h < kHeldPacks; ++h) {
      const int pack = member + h * members;
      if (pack >= packs) break;
      float both[N];
#pragma unroll
      for (int i = 0; i < N; ++i) both[i] = held[h].wide(i) + other[h].wide(i);
      held[h] = narrowed<T, N>(both);
      store_pack(f.sum + row * f.width + pack * N, held[h]);
    }
  }
  float mean = 0;
  if constexpr (centred) {
    mean = mean_of(f.width, [&](float factor) {
      float sum = 0;
#pragma unroll
      for (int h = 0; h < kHeldPacks; ++h) {
        if (member + h * members >= packs) break;
#pragma unroll
        for (int i = 0; i < N; ++i) sum += held[h].wide(i) * factor;
      }
      return team_sum<one_row>(sum);
    });
  }
  const float scale = scale_of(f.width, f.eps, [&](float factor) {
    float squares = 0;
#pragma unroll
    for (int h = 0; h < kHeldPacks; ++h) {
      if (member + h * members >= packs) break;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float d = (held[h].wide(i) - mean) * factor;
        squares += d * d;
      }
    }
    return team_sum<one_row>(squares);
  });
#pragma unroll
  for (int h = 0; h < kHeldPacks; ++h) {
    const int pack = member + h * members;
    if (pack >= packs) break;
    float gamma[N], beta[N] = {}, y[N];
    load(f.gamma + pack * N, gamma);
    if constexpr (centred) load(f.beta + pack * N, beta);
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = normalized<centred>(held[h].wide(i), mean, scale, gamma[i], beta[i]);
    store(f.y + row * f.width + pack * N, y);
  }
  if (member == 0) {
    if constexpr (centred) f.mean[row] = mean;
    f.scale[row] = scale;
  }
}

// Normalizes rows of any width at any address, one block each, reading them three times. With `added` each thread
// rereads the sums that it has written.
template <class T, bool centred, bool added>
__global__ void __launch_bounds__(kLooseThreads) loose_rows(Forward<T> f) {
  const int64_t row = blockIdx.x;
  const T* from = (added ? f.sum : f.x) + row * f.width;
  if constexpr (added) {
    for (int64_t i = threadIdx.x; i < f.width; i += kLooseThreads) {
      const int64_t at = row * f.width + i;
      f.sum[at] = narrow<T>(widen(f.x[at]) + widen(f.residual[at]));
    }
  }
  float mean = 0;
  if constexpr (centred) {
    mean = mean_of(f.width, [&](float factor) {
      float sum = 0;
      for (int64_t i = threadIdx.x; i < f.width; i += kLooseThreads) sum += widen(from[i]) * factor;
      return block_sum(sum);
    });
  }
  const float scale = scale_of(f.width, f.eps, [&](float factor) {
    float squares = 0;
    for (int64_t i = threadIdx.x; i < f.width; i += kLooseThreads) {
      const float d = (widen(from[i]) - mean) * factor;
      squares += d * d;
    }
    return block_sum(squares);
  });
  for (int64_t i = threadIdx.x; i < f.width; i += kLooseThreads) {
    const float beta = centred ? widen(f.beta[i]) : 0.0f;
    f.y[row * f.width + i] = narrow<T>(normalized<centred>(widen(from[i]), mean, scale, widen(f.gamma[i]), beta));
  }
  if (threadIdx.x == 0) {
    if constexpr (centred) f.mean[row] = mean;
    f.scale[row] = scale;
  }
}

template <class T, bool centred, bool added>
std::unique_ptr<Kernel> forward(const OpView& view) {
  constexpr size_t kMore = added ? 1 : 0;  // with `added`, the residual and the sum come second
  Forward<T> f{};
  f.rows = view.read(0).shape.rows(), f.width = view.read(0).shape.last();
  if (added) view.expect_count(view.read(1), f.rows * f.width);
  for (size_t i = 1; i < (centred ? 3 : 2); ++i) view.expect_count(view.read(kMore + i), f.width);
  for (size_t i = 0; i <= kMore; ++i) view.expect_count(view.write(i), f.rows * f.width);
  for (size_t i = 1; i < (centred ? 3 : 2); ++i) view.expect_count(view.write(kMore + i), f.rows);
  f.x = view.in<T>(0), f.gamma = view.in<T>(kMore + 1);
  f.y = view.out<T>(0), f.scale = view.out<float>(kMore + (centred ? 2 : 1));
  if (centred) f.beta = view.in<T>(kMore + 2), f.mean = view.out<float>(kMore + 1);
  if (added) f.residual = view.in<T>(1), f.sum = view.out<T>(1);
  const double eps = view.number("eps", 1e-5);
  f.eps = eps > 0 ? std::max(FLT_MIN, static_cast<float>(eps)) : 0.0f;
  if (f.rows == 0) return kernel_of([](cudaStream_t) {});
  const int team = team_of<T>(f.width, kHeldPacks);
  const bool held = rows_aligned(f.width, f.x, f.residual, f.gamma, f.beta, f.y, f.sum) && team <= kMostThreads;
  const unsigned rows = static_cast<unsigned>(f.rows), blocks = (rows + kWarpsPerBlock - 1) / kWarpsPerBlock;
  if (!held)
    return kernel_of(
        [=](cudaStream_t stream) { launch(loose_rows<T, centred, added>, rows, kLooseThreads, 0, stream, f); });
  if (team > kWarp)
    return kernel_of(
        [=](cudaStream_t stream) { launch(held_rows<T, centred, true, added>, rows, team, 0, stream, f); });
  return kernel_of([=](cudaStream_t stream) {
    launch(held_rows<T, centred, false, added>, blocks, kWarpsPerBlock * kWarp, 0, stream, f);
  });
}

template <bool centred, bool added>
std::unique_ptr<Kernel> make_forward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return forward<T, centred, added>(view); });
}

const KernelFamily kFamily = {{"layernorm", make_forward<true, false>},
                              {"rmsnorm", make_forward<false, false>},
                              {"add_layernorm", make_forward<true, true>},
                              {"add_rmsnorm", make_forward<false, true>}};

}  // namespace
}  // namespace prun::cuda
