// The gradient of attention in bf16 on tensor cores, in two kernels that recompute the probabilities: one has tiles of
// queries and iterates over keys (dq), the other has tiles of keys and iterates over the queries that attend to them
// (dk and dv).
//
// Surprising fact: both are one template. With own rows A1, A2 and other rows B1, B2 (q, dout and k, v for dq; k, v and
// q, dout for dk, dv) each computes P = exp(A1·B1ᵀ - lse) and dS = P·(A2·B2ᵀ - dots), and accumulates dS·B1, the second
// kernel also P·B2. Avoiding float atomics costs seven GEMMs instead of the five of one kernel.
//
// Tiles of B1 and B2 are double-buffered, if shared memory holds two (Cut::Tiles):
//
//      cp.async      | A1, A2, tile 0 | tile 1                  | tile 2                  | ..
//      tensor cores  |                | S, dP, dS·B1 of tile 0  | S, dP, dS·B1 of tile 1  | ..
//      loads into    | buffer 0       | buffer 1                | buffer 0                | ..
#include "attention_dots.cuh"
#include "attention_tiles.cuh"

namespace prun::cuda {
namespace {

constexpr float kLog2e = 1.4426950408889634f;

// Stores two columns of a gradient, from element `at` on.
__device__ void store_pair(const AttentionSizes& s, const GradientHeads<bf16>& to, int64_t at, int column, float first,
                           float second, const float* before) {
  if (column >= s.head) return;
  if (to.data_f32 != nullptr) {
    for (int i = 0; i < 2 && column + i < s.head; ++i)
      to.data_f32[at + i] = (i == 0 ? first : second) + (before == nullptr ? 0.0f : before[at + i]);
  } else if (s.pairs) {
    *reinterpret_cast<__nv_bfloat162*>(to.heads.data + at) = __floats2bfloat162_rn(first, second);
  } else {
    to.heads.data[at] = __float2bfloat16(first);
    if (column + 1 < s.head) to.heads.data[at + 1] = __float2bfloat16(second);
  }
}

// The division of work. D: the head, padded; O: the columns, of D, whose gradients a block computes; Warps: per block;
// M: 16-row tiles of own rows per warp; N: other rows per tile; Tiles: tiles of other rows that shared memory holds; 2
// = double buffering.
template <int D_, int O_, int Warps_, int M_, int N_, int Tiles_>
struct Cut {
  static constexpr int D = D_, O = O_, M = M_, N = N_, Tiles = Tiles_;
  static constexpr int kThreads = 32 * Warps_, kRows = 16 * M * Warps_;
  static constexpr int kBytes =
      2 * (kRows + Tiles * N) * D * static_cast<int>(sizeof(bf16)) + 2 * Tiles * N * static_cast<int>(sizeof(float));
};

template <bool OfKeys, class C>
__global__ void __launch_bounds__(C::kThreads) backward_kernel(const AttentionBackward<bf16> a) {
  PRUN_SHARED(shared);
  constexpr int D = C::D, M = C::M, N = C::N, kRows = C::kRows, kTile = N * D;
  const AttentionSizes& s = a.sizes;
  const Tile<D> own1{reinterpret_cast<bf16*>(shared)}, own2{own1.data + kRows * D};
  bf16* const others = own2.data + kRows * D;
  float* const columns = reinterpret_cast<float*>(others + 2 * C::Tiles * kTile);  // OfKeys: lse and dots of other rows
  const Heads<const bf16>&left1 = OfKeys ? a.k : a.q, &left2 = OfKeys ? a.v : a.dout;
  const Heads<const bf16>&right1 = OfKeys ? a.q : a.k, &right2 = OfKeys ? a.dout : a.v;
  const int own_heads = OfKeys ? s.kv_heads : s.heads, per_head = OfKeys ? s.group() : 1;
  const int64_t b = blockIdx.x / own_heads, own_head = blockIdx.x % own_heads;
  const int block =
      OfKeys ? static_cast<int>(blockIdx.y) : static_cast<int>(gridDim.y - 1 - blockIdx.y);  // starts with long ones
  const int first = block * kRows, there = s.length - first, end = min(first + kRows, s.length);

  // Tiles of other rows from `from` on, of each head in order: the keys that the last query attends to; the queries
  // that attend to the first key.
  int from = 0, count = (s.mask.keys(end - 1) + N - 1) / N;
  if (OfKeys) {
    const int all = (s.length + N - 1) / N;
    while (from < all && s.mask.keys(min((from + 1) * N, s.length) - 1) <= first) ++from;
    count = all - from;
  }
  auto head_of = [&](int i) { return OfKeys ? own_head * per_head + i / count : own_head / s.group(); };
  auto tile1 = [&](int i) { return Tile<D>{others + i % C::Tiles * 2 * kTile}; };
  auto tile2 = [&](int i) { return Tile<D>{others + i % C::Tiles * 2 * kTile + kTile}; };
  auto load = [&](int i) {
    const int64_t head = head_of(i);
    const int row = (from + i % count) * N;
    tile1(i).template load<N, C::kThreads>(right1.head(b, head, s.head) + row * right1.row, right1.row, s.length - row,
                                           s.head, s.vector);
    tile2(i).template load<N, C::kThreads>(right2.head(b, head, s.head) + row * right2.row, right2.row, s.length - row,
                                           s.head, s.vector);
    if (!OfKeys) return;
    const int64_t at = (b * s.heads + head) * s.length;
    float* to = columns + i % C::Tiles * 2 * N;
    for (int q = threadIdx.x; q < N; q += C::kThreads) {
      to[q] = row + q < s.length ? a.lse[at + row + q] * kLog2e : INFINITY;  // no query: P is 0
      to[N + q] = row + q < s.length ? a.dots[at + row + q] : 0.0f;
    }
  };
  const int rounds = per_head * count;
  if (rounds > 0) {
    own1.template load<kRows, C::kThreads>(left1.head(b, own_head, s.head) + first * left1.row, left1.row, there,
                                           s.head, s.vector);
    own2.template load<kRows, C::kThreads>(left2.head(b, own_head, s.head) + first * left2.row, left2.row, there,
                                           s.head, s.vector);
    if (C::Tiles > 1) load(0);
  }

  const int g = (threadIdx.x & 31) / 4, t = threadIdx.x & 3, warp_row = static_cast<int>(threadIdx.x / 32) * 16 * M;
  const int part = static_cast<int>(blockIdx.z) * (C::O / 8);  // the gradients' columns, in units of 8
  const float scale = s.scale * kLog2e;
  float lse[M][2], dots[M][2];  // statistics of own rows, unless OfKeys
  if (!OfKeys)
    for (int m = 0; m < M; ++m)
      for (int r = 0; r < 2; ++r) {
        const int row = first + warp_row + 16 * m + g + 8 * r;
        const int64_t at = (b * s.heads + own_head) * s.length + row;
        lse[m][r] = row < s.length ? a.lse[at] * kLog2e : INFINITY;
        dots[m][r] = row < s.length ? a.dots[at] : 0.0f;
      }
  const int warp_first = first + warp_row, warp_last = min(warp_first + 16 * M, s.length) - 1;
  float sum1[M][C::O / 8][4] = {}, sum2[OfKeys ? M : 1][OfKeys ? C::O / 8 : 1][4] = {};
  for (int i = 0; i < rounds; ++i) {
    if (C::Tiles == 1) {
      __syncthreads();  // no warp reads the previous tile any more
      load(i);
    }
    wait_copies();
    __syncthreads();  // tile i has arrived, and no warp reads tile i - 1 any more
    if (C::Tiles > 1 && i + 1 < rounds) load(i + 1);
    const int other = (from + i % count) * N, other_last = min(other + N, s.length) - 1;
    if (warp_first >= s.length || s.mask.keys(OfKeys ? other_last : warp_last) <= (OfKeys ? warp_first : other))
      continue;
    float p[M][N / 8][4], ds[M][N / 8][4];
    multiply_rows(p, own1, warp_row, tile1(i), 0);
    multiply_rows(ds, own2, warp_row, tile2(i), 0);
    const bool cut = OfKeys ? s.mask.keys(other) < end : s.mask.keys(first) < other + N;
    const float* column = columns + i % C::Tiles * 2 * N;
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int c = 8 * n + 2 * t + e % 2;
        const float column_lse = OfKeys ? column[c] : 0.0f, column_dot = OfKeys ? column[N + c] : 0.0f;
        const int column_sees = OfKeys && cut ? s.mask.keys(min(other + c, s.length - 1)) : 0;
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const int row = first + warp_row + 16 * m + g + 8 * (e / 2);
          const float l = OfKeys ? column_lse : lse[m][e / 2], d = OfKeys ? column_dot : dots[m][e / 2];
          float probability = exp2_approximate(fmaf(p[m][n][e], scale, -l));
          if (cut) {
            const bool seen = OfKeys ? row < column_sees : other + c < s.mask.keys(min(row, s.length - 1));
            if (!seen) probability = 0;
          }
          p[m][n][e] = probability;
          ds[m][n][e] = probability == 0 ? 0.0f : probability * (ds[m][n][e] - d);
        }
      }
    add_gemm(sum1, ds, tile1(i), 0, part);
    if constexpr (OfKeys) add_gemm(sum2, p, tile2(i), 0, part);
  }

  const GradientHeads<bf16>& to1 = OfKeys ? a.dk : a.dq;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + warp_row + 16 * m + g + 8 * r;
      if (row >= s.length) continue;
      const int64_t at = b * to1.heads.sample + own_head * s.head + row * to1.heads.row;
#pragma unroll
      for (int n = 0; n < C::O / 8; ++n) {
        const int c = 8 * (part + n) + 2 * t;
        store_pair(s, to1, at + c, c, sum1[m][n][2 * r] * s.scale, sum1[m][n][2 * r + 1] * s.scale,
                   OfKeys ? nullptr : a.dq_before);
        if constexpr (OfKeys) store_pair(s, a.dv, at + c, c, sum2[m][n][2 * r], sum2[m][n][2 * r + 1], nullptr);
      }
    }
}

template <bool OfKeys, class C>
dim3 prepare(const AttentionSizes& s) {
  allow_shared(backward_kernel<OfKeys, C>, C::kBytes);
  return dim3(static_cast<unsigned>(s.batch * (OfKeys ? s.kv_heads : s.heads)), (s.length + C::kRows - 1) / C::kRows,
              C::D / C::O);
}

template <class OfQueries, class OfKeys>
std::unique_ptr<Kernel> make(const AttentionBackward<bf16>& a) {
  const dim3 queries = prepare<false, OfQueries>(a.sizes), keys = prepare<true, OfKeys>(a.sizes);
  return kernel_of([a, queries, keys](cudaStream_t stream) {
    run_dots(dots_of(a), stream);
    launch(backward_kernel<false, OfQueries>, queries, OfQueries::kThreads, OfQueries::kBytes, stream, a);
    launch(backward_kernel<true, OfKeys>, keys, OfKeys::kThreads, OfKeys::kBytes, stream, a);
  });
}

}  // namespace

std::unique_ptr<Kernel> own_attention_backward(const AttentionBackward<bf16>& a) {
  if (a.sizes.head <= 64) return make<Cut<64, 64, 4, 2, 32, 2>, Cut<64, 64, 4, 2, 16, 2>>(a);
  if (a.sizes.head <= 128) return make<Cut<128, 128, 4, 2, 32, 2>, Cut<128, 128, 8, 1, 32, 2>>(a);
  return make<Cut<256, 256, 4, 1, 32, 1>, Cut<256, 128, 4, 1, 32, 1>>(a);
}

}  // namespace prun::cuda
