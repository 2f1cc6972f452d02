// The op attend in bf16 on tensor cores: as attention_forward.cu, with tiles of K and V in two buffers, but over the
// tiles from the first to the last key that any query of the block sees. Only tiles that some query of a warp sees in
// part, or that a mask may change, are compared key by key.
#include "attend_tiles.cuh"

namespace prun::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kKeptWords = 256;  // words of a mask of keys in shared memory; longer masks are read key by key

// D: the larger of both heads, padded to 64, 128 or 256; M: 16-row tiles of queries per warp; N: keys per tile.
template <int D, int M, int N>
__global__ void __launch_bounds__(kThreads) attend_forward_kernel(const AttendForward<bf16> a) {
  PRUN_SHARED(shared);
  constexpr int kRows = 16 * M * kWarps, kTile = N * D, kColumns = N / 8;
  const AttendSizes& s = a.sizes;
  const Tile<D> q{reinterpret_cast<bf16*>(shared)};
  KeySpan* const spans = reinterpret_cast<KeySpan*>(q.data + kRows * D + 4 * kTile);
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kRows;  // long rows first, because they take longest
  const int64_t b = blockIdx.x / s.heads, h = blockIdx.x % s.heads, kv_head = s.kv_head(h);
  for (int i = threadIdx.x; i < kRows; i += kThreads) spans[i] = span_of(s, b, first + i);
  __syncthreads();
  const int warp = threadIdx.x / 32, g = (threadIdx.x & 31) / 4, t = threadIdx.x & 3, warp_row = warp * 16 * M;
  const TileRange tiles = key_tiles(seen_by(spans, kRows), N);
  uint32_t* const kept_words = reinterpret_cast<uint32_t*>(spans + kRows);
  const bool by_bits = has_key_mask(s) && tiles.count * N <= 32 * kKeptWords;
  if (by_bits) load_kept<kThreads>(s, b, tiles.from * N, (tiles.from + tiles.count) * N, kept_words);
  const SeenKeys seen = seen_by(spans + warp_row, 16 * M);
  const bf16* k_rows = a.k.head(b, kv_head, s.head);
  const bf16* v_rows = a.v.head(b, kv_head, s.value);
  auto k_tile = [&](int j) { return Tile<D>{q.data + kRows * D + (j & 1) * 2 * kTile}; };
  auto v_tile = [&](int j) { return Tile<D>{q.data + kRows * D + (j & 1) * 2 * kTile + kTile}; };
  auto load = [&](int j) {
    const int key = j * N, there = s.keys - key;
    k_tile(j).template load<N, kThreads>(k_rows + key * a.k.row, a.k.row, there, s.head, s.vector);
    v_tile(j).template load<N, kThreads>(v_rows + key * a.v.row, a.v.row, there, s.value, s.vector);
  };
  if (tiles.count > 0) {
    q.template load<kRows, kThreads>(a.q.head(b, h, s.head) + first * a.q.row, a.q.row, s.queries - first, s.head,
                                     s.vector);
    load(tiles.from);
  }

  const ScoreScale factors(s);
  const float scale = factors.natural * kLog2e;
  float out[M][D / 8][4] = {}, top[M][2], sum[M][2] = {};  // top: maximum of unscaled scores
  for (int m = 0; m < M; ++m) top[m][0] = top[m][1] = -INFINITY;
  for (int j = tiles.from; j < tiles.from + tiles.count; ++j) {
    wait_copies();
    __syncthreads();  // tile j has arrived, and no warp reads tile j - 1 any more
    if (j + 1 < tiles.from + tiles.count) load(j + 1);
    const auto kept_of = [&](int tile) {
      Kept<N> kept = all_kept<N>();
      if (by_bits)
        for (int w = 0; w < N / 32; ++w) kept.words[w] = kept_words[(tile - tiles.from) * (N / 32) + w];
      return kept;
    };
    if (!seen.any(j * N, (j + 1) * N) || kept_of(j).none()) continue;
    float p[M][kColumns][4];
    multiply_rows(p, q, warp_row, k_tile(j), 0);
    if (factors.inner > 0) {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) p[m][n][i] = tanh_approximate(p[m][n][i] * factors.inner);
    }
    if (!seen.all(j * N, (j + 1) * N) || !kept_of(j).all()) {
      const Kept<N> kept = kept_of(j);
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const KeySpan span = spans[warp_row + 16 * m + g + 8 * r];
#pragma unroll
          for (int n = 0; n < kColumns; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (!kept.has(8 * n, 2 * t + e) || !span.has(j * N + 8 * n + 2 * t + e)) p[m][n][2 * r + e] = -INFINITY;
        }
    }
    if (s.mask != nullptr && !by_bits) {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int query = min(first + warp_row + 16 * m + g + 8 * r, s.queries - 1);
#pragma unroll
          for (int n = 0; n < kColumns; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (!is_kept(s, b, query, min(j * N + 8 * n + 2 * t + e, s.keys - 1))) p[m][n][2 * r + e] = -INFINITY;
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
        const float base = most == -INFINITY ? 0.0f : most * scale;  // -inf: a row that has seen no key yet
        // The factor is exactly 1 if the maximum is unchanged; see attention_forward.cu.
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
      if (row >= s.queries) continue;
      const float factor = total == 0 ? 0.0f : 1 / total;
      if (t == 0)
        a.lse[(b * s.heads + h) * s.queries + row] =
            total == 0 ? 0.0f : top[m][r] * factors.natural + log2f(total) * kLn2;
      bf16* const to = a.out + (b * s.queries + row) * s.heads * s.value + h * s.value;
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        store_pair(to, 8 * n + 2 * t, s.value, s.pairs, out[m][n][2 * r] * factor, out[m][n][2 * r + 1] * factor);
    }
}

template <int D, int M, int N>
std::unique_ptr<Kernel> make(const AttendForward<bf16>& a) {
  constexpr int kRows = 16 * M * kWarps, kBytes = (kRows + 4 * N) * D * static_cast<int>(sizeof(bf16)) +
                                                  kRows * static_cast<int>(sizeof(KeySpan)) +
                                                  kKeptWords * static_cast<int>(sizeof(uint32_t));
  allow_shared(attend_forward_kernel<D, M, N>, kBytes);
  const dim3 grid(static_cast<unsigned>(a.sizes.batch * a.sizes.heads), (a.sizes.queries + kRows - 1) / kRows);
  return kernel_of(
      [a, grid](cudaStream_t stream) { launch(attend_forward_kernel<D, M, N>, grid, kThreads, kBytes, stream, a); });
}

}  // namespace

std::unique_ptr<Kernel> attend_forward(const AttendForward<bf16>& a) {
  const int most = a.sizes.head > a.sizes.value ? a.sizes.head : a.sizes.value;
  if (most <= 64) return make<64, 2, 64>(a);
  if (most <= 128) return make<128, 2, 32>(a);
  return make<256, 1, 32>(a);
}

}  // namespace prun::cuda
