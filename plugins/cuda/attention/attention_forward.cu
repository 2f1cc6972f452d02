// Attention in bf16 on tensor cores: a block has a tile of a head's queries and iterates over the keys that they attend
// to, with an online softmax (Dao, "FlashAttention-2", 2023, whose division of work this follows). Tiles of K and V are
// double-buffered:
//
//      cp.async      | Q, tile 0 | tile 1                                | tile 2                | ..
//      tensor cores  |           | S = Q·Kᵀ, softmax, O += P·V of tile 0 | the same with tile 1  | ..
//      loads into    | buffer 0  | buffer 1                              | buffer 0              | ..
//
// A warp has 16·M queries of its own, so only four lanes share the maximum and the sum of a row.
#include "attention_tiles.cuh"
#include "cuda/kernels/launch.h"

namespace prun::cuda {
namespace {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr int kWarps = 4, kThreads = 32 * kWarps;

// Stores two columns of a row of out, merged with those of the previous keys.
__device__ void store_pair(const AttentionForward<bf16>& a, int64_t at, int column, float first, float second,
                           float keep) {
  const int head = a.sizes.head;
  if (column >= head) return;
  if (a.out_f32 != nullptr) {
    for (int i = 0; i < 2 && column + i < head; ++i) {
      const float now = i == 0 ? first : second;
      a.out_f32[at + i] = keep == 0 ? now : now + keep * a.out_before[at + i];
    }
  } else if (a.sizes.pairs) {
    *reinterpret_cast<__nv_bfloat162*>(a.out + at) = __floats2bfloat162_rn(first, second);
  } else {
    a.out[at] = __float2bfloat16(first);
    if (column + 1 < head) a.out[at + 1] = __float2bfloat16(second);
  }
}

// D: the head padded to 64, 128 or 256; M: 16-row tiles of queries per warp; N: keys per tile.
template <int D, int M, int N>
__global__ void __launch_bounds__(kThreads) forward_kernel(const AttentionForward<bf16> a) {
  PRUN_SHARED(shared);
  constexpr int kRows = 16 * M * kWarps, kTile = N * D, kColumns = N / 8;
  const AttentionSizes& s = a.sizes;
  const Tile<D> q{reinterpret_cast<bf16*>(shared)};
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kRows;  // long rows first, because they take longest
  const int64_t b = blockIdx.x / s.heads, h = blockIdx.x % s.heads, shared_head = h / s.group();
  const int last = min(first + kRows, s.length) - 1, keys = s.mask.keys(last), sure = s.mask.keys(first);
  const bf16* k_rows = a.k.head(b, shared_head, s.head);
  const bf16* v_rows = a.v.head(b, shared_head, s.head);
  auto k_tile = [&](int j) { return Tile<D>{q.data + kRows * D + (j & 1) * 2 * kTile}; };
  auto v_tile = [&](int j) { return Tile<D>{q.data + kRows * D + (j & 1) * 2 * kTile + kTile}; };
  auto load = [&](int j) {
    const int key = j * N, there = s.length - key;
    k_tile(j).template load<N, kThreads>(k_rows + key * a.k.row, a.k.row, there, s.head, s.vector);
    v_tile(j).template load<N, kThreads>(v_rows + key * a.v.row, a.v.row, there, s.head, s.vector);
  };
  if (keys > 0) {
    q.template load<kRows, kThreads>(a.q.head(b, h, s.head) + first * a.q.row, a.q.row, s.length - first, s.head,
                                     s.vector);
    load(0);
  }

  const int warp = threadIdx.x / 32, g = (threadIdx.x & 31) / 4, t = threadIdx.x & 3, warp_row = warp * 16 * M;
  const float scale = s.scale * kLog2e;
  float out[M][D / 8][4] = {}, top[M][2], sum[M][2] = {};  // top: maximum of unscaled scores
  for (int m = 0; m < M; ++m) top[m][0] = top[m][1] = -INFINITY;
  const int tiles = (keys + N - 1) / N, warp_first = first + warp_row;
  const int warp_keys = warp_first < s.length ? s.mask.keys(min(warp_first + 16 * M, s.length) - 1) : 0;
  for (int j = 0; j < tiles; ++j) {
    wait_copies();
    __syncthreads();  // tile j has arrived, and no warp reads tile j - 1 any more
    if (j + 1 < tiles) load(j + 1);
    if (j * N >= warp_keys) continue;
    float p[M][kColumns][4];
    multiply_rows(p, q, warp_row, k_tile(j), 0);
    if ((j + 1) * N > sure) {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int seen = s.mask.keys(min(first + warp_row + 16 * m + g + 8 * (i / 2), s.length - 1));
#pragma unroll
          for (int n = 0; n < kColumns; ++n)
            if (j * N + 8 * n + 2 * t + i % 2 >= seen) p[m][n][i] = -INFINITY;
        }
    }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float most = top[m][r];
#pragma unroll
        for (int n = 0; n < kColumns; ++n) most = fmaxf(most, fmaxf(p[m][n][2 * r], p[m][n][2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float base = most == -INFINITY ? 0.0f : most * scale;  // -inf: a row that has attended to no key yet
        // The factor is exactly 1 if the maximum is unchanged, because contraction to an FMA would add a rounding error
        // in every tile.
        const float shrink = top[m][r] == most ? 1.0f : exp2_approximate((top[m][r] - most) * scale);
        top[m][r] = most;
        float added = 0;
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; ++i) {
            p[m][n][i] = exp2_approximate(fmaf(p[m][n][i], scale, -base));
            added += p[m][n][i];
          }
        sum[m][r] = sum[m][r] * shrink + added;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) out[m][n][2 * r] *= shrink, out[m][n][2 * r + 1] *= shrink;
      }
    add_gemm(out, p, v_tile(j), 0, 0);
  }

#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = sum[m][r];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const int row = first + warp_row + 16 * m + g + 8 * r;
      const bool there = row < s.length;
      const int64_t at_lse = (b * s.heads + h) * s.length + row;
      float lse = total == 0 ? -INFINITY : top[m][r] * s.scale + log2f(total) * kLn2, keep = 0;
      float factor = total == 0 ? 0.0f : 1 / total;
      if (there && a.lse_before != nullptr) {
        const float before = a.lse_before[at_lse], most = fmaxf(before, lse);
        const float old_share = expf(before - most), new_share = expf(lse - most), both = old_share + new_share;
        keep = old_share / both, factor *= new_share / both, lse = most + logf(both);
      }
      __syncwarp();  // lse_before may be lse
      if (!there) continue;
      if (t == 0) a.lse[at_lse] = lse;
      const int64_t at = (b * s.length + row) * s.heads * s.head + h * s.head;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int column = 8 * n + 2 * t;
        store_pair(a, at + column, column, out[m][n][2 * r] * factor, out[m][n][2 * r + 1] * factor, keep);
      }
    }
}

template <int D, int M, int N>
std::unique_ptr<Kernel> make(const AttentionForward<bf16>& a) {
  constexpr int kRows = 16 * M * kWarps, kBytes = (kRows + 4 * N) * D * static_cast<int>(sizeof(bf16));
  allow_shared(forward_kernel<D, M, N>, kBytes);
  const dim3 grid(static_cast<unsigned>(a.sizes.batch * a.sizes.heads), (a.sizes.length + kRows - 1) / kRows);
  return kernel_of(
      [a, grid](cudaStream_t stream) { launch(forward_kernel<D, M, N>, grid, kThreads, kBytes, stream, a); });
}

}  // namespace

std::unique_ptr<Kernel> own_attention_forward(const AttentionForward<bf16>& a) {
  if (a.sizes.head <= 64) return make<64, 2, 64>(a);
  if (a.sizes.head <= 128) return make<128, 2, 32>(a);
  return make<256, 1, 32>(a);
}

}  // namespace prun::cuda
