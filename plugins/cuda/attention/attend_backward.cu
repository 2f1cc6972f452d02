// The gradient of the op attend in bf16 on tensor cores: the two kernels of attention_backward.cu over separate
// tensors. The kernel of keys (dk and dv) finds the queries that see its keys in AttendBackward::tiles, since spans may
// be in any order, and computes the spans of each tile of queries again.
#include "attend_tiles.cuh"

namespace prun::cuda {
namespace {

// The division of work. D: the larger of both heads, padded; O: the columns, of D, whose gradients a block computes;
// Warps: per block; M: 16-row tiles of own rows per warp; N: other rows per tile; Tiles: tiles of other rows that
// shared memory holds; 2 = double buffering.
template <int D_, int O_, int Warps_, int M_, int N_, int Tiles_>
struct AttendCut {
  static constexpr int D = D_, O = O_, M = M_, N = N_, Tiles = Tiles_;
  static constexpr int kThreads = 32 * Warps_, kRows = 16 * M * Warps_;
  static constexpr int kRowBytes = 2 * static_cast<int>(sizeof(float)) + static_cast<int>(sizeof(KeySpan));
  static constexpr int kBytes =
      2 * (kRows + Tiles * N) * D * static_cast<int>(sizeof(bf16)) + (Tiles * N + kRows) * kRowBytes;
};

// lse (in powers of two), dots and keys of a tile's queries, in shared memory.
struct QueryRows {
  float *lse, *dots;
  KeySpan* spans;

  __device__ static QueryRows at(void* memory, int count) {
    auto* const lse = static_cast<float*>(memory);
    return {lse, lse + count, reinterpret_cast<KeySpan*>(lse + 2 * count)};
  }
  // Loads `count` queries from `first` on; 0 and no keys after the last.
  __device__ void load(const AttendBackward<bf16>& a, int64_t b, int64_t head, int first, int count) const {
    const AttendSizes& s = a.sizes;
    const int64_t at = (b * s.heads + head) * s.queries + first;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const bool there = first + i < s.queries;
      lse[i] = there ? a.lse[at + i] * kLog2e : 0.0f;
      dots[i] = there ? a.dots[at + i] : 0.0f;
      spans[i] = span_of(s, b, first + i);
    }
  }
};

template <bool OfKeys, class C>
__global__ void __launch_bounds__(C::kThreads) attend_backward_kernel(const AttendBackward<bf16> a) {
  PRUN_SHARED(shared);
  constexpr int D = C::D, M = C::M, N = C::N, kRows = C::kRows, kTile = N * D;
  const AttendSizes& s = a.sizes;
  const Tile<D> own1{reinterpret_cast<bf16*>(shared)}, own2{own1.data + kRows * D};
  bf16* const others = own2.data + kRows * D;
  unsigned char* const statistics = reinterpret_cast<unsigned char*>(others + 2 * C::Tiles * kTile);
  const Heads<const bf16>&left1 = OfKeys ? a.k : a.q, &left2 = OfKeys ? a.v : a.dout;
  const Heads<const bf16>&right1 = OfKeys ? a.q : a.k, &right2 = OfKeys ? a.dout : a.v;
  const int own_heads = OfKeys ? s.kv_heads : s.heads, own_rows = OfKeys ? s.keys : s.queries,
            other_rows = OfKeys ? s.queries : s.keys;
  const int64_t b = blockIdx.x / own_heads;
  const int own_head = static_cast<int>(blockIdx.x % own_heads);
  const int block =
      OfKeys ? static_cast<int>(blockIdx.y) : static_cast<int>(gridDim.y - 1 - blockIdx.y);  // starts with long ones
  const int first = block * kRows, there = own_rows - first;
  const int g = (threadIdx.x & 31) / 4, t = threadIdx.x & 3, warp_row = static_cast<int>(threadIdx.x / 32) * 16 * M;

  // Tiles of other rows, of each head in order.
  const QueryRows own_queries = QueryRows::at(statistics + C::Tiles * N * C::kRowBytes, kRows);  // unless OfKeys
  const int first_head = OfKeys ? s.first_user(own_head) : s.kv_head(own_head),
            heads = OfKeys ? s.first_user(own_head + 1) - first_head : 1;
  TileRange tiles{};
  SeenKeys seen{};  // by the warp's queries
  // The bits of a mask of keys take shared memory that this kernel does not use. The kernel over keys stores those of
  // its own rows where the one over queries has the lse of its queries. The kernel over queries stores those of all
  // keys where the one over keys has the statistics of tiles.
  constexpr int kOwn = 16 * M, kKeptWords = C::Tiles * N * C::kRowBytes / 4;
  uint32_t* const kept_words =
      OfKeys ? reinterpret_cast<uint32_t*>(own_queries.lse) : reinterpret_cast<uint32_t*>(statistics);
  Kept<kOwn> own_kept = all_kept<kOwn>();
  bool by_bits = has_key_mask(s);
  if constexpr (OfKeys) {
    if (by_bits) {
      load_kept<C::kThreads>(s, b, first, first + kRows, kept_words);
      __syncthreads();
      own_kept.words[0] = kept_words[warp_row / 32] >> warp_row % 32 & Kept<kOwn>::kFull;
    }
    const int count = (s.queries + kSpanTile - 1) / kSpanTile;
    tiles = query_tiles(a.tiles + b * count, count, first, min(first + kRows, s.keys), N);
  } else {
    own_queries.load(a, b, own_head, first, kRows);
    __syncthreads();
    tiles = key_tiles(seen_by(own_queries.spans, kRows), N);
    seen = seen_by(own_queries.spans + warp_row, 16 * M);
    by_bits = by_bits && tiles.count * N <= 32 * kKeptWords;
    if (by_bits) load_kept<C::kThreads>(s, b, tiles.from * N, (tiles.from + tiles.count) * N, kept_words);
  }
  auto tile1 = [&](int i) { return Tile<D>{others + i % C::Tiles * 2 * kTile}; };
  auto tile2 = [&](int i) { return Tile<D>{others + i % C::Tiles * 2 * kTile + kTile}; };
  auto queries = [&](int i) { return QueryRows::at(statistics + i % C::Tiles * N * C::kRowBytes, N); };
  auto load = [&](int i) {
    const int head = first_head + i / tiles.count, row = (tiles.from + i % tiles.count) * N;
    tile1(i).template load<N, C::kThreads>(right1.head(b, head, s.head) + row * right1.row, right1.row,
                                           other_rows - row, s.head, s.vector);
    tile2(i).template load<N, C::kThreads>(right2.head(b, head, s.value) + row * right2.row, right2.row,
                                           other_rows - row, s.value, s.vector);
    if (OfKeys) queries(i).load(a, b, head, row, N);
  };
  const int rounds = heads * tiles.count;
  if (rounds > 0) {
    own1.template load<kRows, C::kThreads>(left1.head(b, own_head, s.head) + first * left1.row, left1.row, there,
                                           s.head, s.vector);
    own2.template load<kRows, C::kThreads>(left2.head(b, own_head, s.value) + first * left2.row, left2.row, there,
                                           s.value, s.vector);
    if (C::Tiles > 1) load(0);
  }

  const int part = static_cast<int>(blockIdx.z) * (C::O / 8);  // the gradients' columns, in units of 8
  const ScoreScale factors(s);
  const float scale = factors.natural * kLog2e;
  const int warp_first = first + warp_row, warp_end = min(warp_first + 16 * M, own_rows);
  float sum1[M][C::O / 8][4] = {}, sum2[OfKeys ? M : 1][OfKeys ? C::O / 8 : 1][4] = {};
  for (int i = 0; i < rounds; ++i) {
    if (C::Tiles == 1) {
      __syncthreads();  // no warp reads the previous tile any more
      load(i);
    }
    wait_copies();
    __syncthreads();  // tile i has arrived, and no warp reads tile i - 1 any more
    if (C::Tiles > 1 && i + 1 < rounds) load(i + 1);
    const int other = (tiles.from + i % tiles.count) * N;
    if (OfKeys) seen = seen_by(queries(i).spans, N);
    Kept<N> other_kept = all_kept<N>();
    if (!OfKeys && by_bits)
      for (int w = 0; w < N / 32; ++w) other_kept.words[w] = kept_words[i * (N / 32) + w];
    if (warp_first >= warp_end || own_kept.none() || other_kept.none() ||
        !(OfKeys ? seen.any(warp_first, warp_end) : seen.any(other, other + N)))
      continue;
    const bool cut = !(OfKeys ? seen.all(warp_first, warp_first + 16 * M) : seen.all(other, other + N)) ||
                     !(by_bits ? own_kept.all() && other_kept.all() : s.mask == nullptr);
    float p[M][N / 8][4], ds[M][N / 8][4];
    multiply_rows(p, own1, warp_row, tile1(i), 0);
    multiply_rows(ds, own2, warp_row, tile2(i), 0);
    const QueryRows rows = OfKeys ? queries(i) : own_queries;
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const int own = warp_row + 16 * m + g + 8 * (e / 2), beside = 8 * n + 2 * t + e % 2;
          const int row = OfKeys ? beside : own;  // of `rows`
          float x = p[m][n][e], slope = 1;
          if (factors.inner > 0) {
            x = tanh_approximate(x * factors.inner);
            slope = 1 - x * x;
          }
          float probability = exp2_approximate(fmaf(x, scale, -rows.lse[row]));
          if (cut) {
            const int query = OfKeys ? other + beside : first + own, key = OfKeys ? first + own : other + beside;
            if (!rows.spans[row].has(key) || !own_kept.has(OfKeys ? 16 * m : 0, OfKeys ? g + 8 * (e / 2) : 0) ||
                !other_kept.has(8 * n, 2 * t + e % 2) || (!by_bits && !is_kept(s, b, query, key)))
              probability = 0;
          }
          p[m][n][e] = probability;
          ds[m][n][e] = probability == 0 ? 0.0f : probability * (ds[m][n][e] - rows.dots[row]) * slope;
        }
    add_gemm(sum1, ds, tile1(i), 0, part);
    if constexpr (OfKeys) add_gemm(sum2, p, tile2(i), 0, part);
  }

  const Heads<bf16>& to = OfKeys ? a.dk : a.dq;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_first + 16 * m + g + 8 * r;
      if (row >= own_rows) continue;
      bf16* const to1 = to.head(b, own_head, s.head) + row * to.row;
      bf16* const to2 = a.dv.head(b, own_head, s.value) + row * a.dv.row;
#pragma unroll
      for (int n = 0; n < C::O / 8; ++n) {
        const int c = 8 * (part + n) + 2 * t;
        store_pair(to1, c, s.head, s.pairs, sum1[m][n][2 * r] * s.scale, sum1[m][n][2 * r + 1] * s.scale);
        if constexpr (OfKeys) store_pair(to2, c, s.value, s.pairs, sum2[m][n][2 * r], sum2[m][n][2 * r + 1]);
      }
    }
}

template <bool OfKeys, class C>
dim3 prepare(const AttendSizes& s) {
  allow_shared(attend_backward_kernel<OfKeys, C>, C::kBytes);
  return dim3(static_cast<unsigned>(s.batch * (OfKeys ? s.kv_heads : s.heads)),
              ((OfKeys ? s.keys : s.queries) + C::kRows - 1) / C::kRows, C::D / C::O);
}

template <class OfQueries, class OfKeys>
std::unique_ptr<Kernel> make(const AttendBackward<bf16>& a) {
  const dim3 queries = prepare<false, OfQueries>(a.sizes), keys = prepare<true, OfKeys>(a.sizes);
  return kernel_of([a, queries, keys](cudaStream_t stream) {
    run_dots(dots_of(a), stream);
    run_tiles(a, stream);
    launch(attend_backward_kernel<false, OfQueries>, queries, OfQueries::kThreads, OfQueries::kBytes, stream, a);
    launch(attend_backward_kernel<true, OfKeys>, keys, OfKeys::kThreads, OfKeys::kBytes, stream, a);
  });
}

}  // namespace

std::unique_ptr<Kernel> attend_backward(const AttendBackward<bf16>& a) {
  const int most = a.sizes.head > a.sizes.value ? a.sizes.head : a.sizes.value;
  if (most <= 64) return make<AttendCut<64, 64, 4, 2, 32, 2>, AttendCut<64, 64, 4, 2, 16, 2>>(a);
  if (most <= 128) return make<AttendCut<128, 128, 4, 2, 32, 2>, AttendCut<128, 128, 8, 1, 32, 2>>(a);
  return make<AttendCut<256, 256, 4, 1, 32, 1>, AttendCut<256, 128, 4, 1, 32, 1>>(a);
}

}  // namespace prun::cuda
