// The op attend and its gradient in f32 on CUDA cores; the division of work is that of attention_f32.cu. A block of
// queries computes the tiles of keys from the first to the last key that any of its queries sees.
#include "attend_rules.cuh"
#include "attention_dots.cuh"
#include "attention_rows.cuh"

namespace prun::cuda {
namespace {

// D: the larger of both heads, padded to 64, 128 or 256; R: rows per thread; N: keys per thread.
template <int D, int R, int N>
__global__ void __launch_bounds__(kThreads, 2) attend_forward_kernel(const AttendForward<float> a) {
  PRUN_SHARED(shared);
  constexpr int kRows = kSide * R, kKeys = kSide * N, kStride = Rows<D>::kStride, kWide = kKeys + 4;
  const AttendSizes& s = a.sizes;
  const Rows<D> q{reinterpret_cast<float*>(shared)}, k{q.data + kRows * kStride}, v{k.data + kKeys * kStride};
  float* const p = v.data + kKeys * kStride;
  KeySpan* const spans = reinterpret_cast<KeySpan*>(p + kRows * kWide);
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kRows;
  const int64_t b = blockIdx.x / s.heads, h = blockIdx.x % s.heads, kv_head = s.kv_head(h);
  for (int i = threadIdx.x; i < kRows; i += kThreads) spans[i] = span_of(s, b, first + i);
  __syncthreads();
  const SeenKeys seen = seen_by(spans, kRows);
  const TileRange tiles = key_tiles(seen, kKeys);
  q.load(kRows, a.q.head(b, h, s.head) + first * a.q.row, a.q.row, s.queries - first, s.head, s.vector);
  float out[R][D / kSide] = {}, top[R], sum[R] = {};
  for (int i = 0; i < R; ++i) top[i] = -INFINITY;
  for (int key = tiles.from * kKeys; key < (tiles.from + tiles.count) * kKeys; key += kKeys) {
    __syncthreads();
    k.load(kKeys, a.k.head(b, kv_head, s.head) + key * a.k.row, a.k.row, s.keys - key, s.head, s.vector);
    v.load(kKeys, a.v.head(b, kv_head, s.value) + key * a.v.row, a.v.row, s.keys - key, s.value, s.vector);
    __syncthreads();
    float scores[R][N];
    multiply_rows(scores, q, k, y, x);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int row = y + kSide * i;
      const KeySpan span = spans[row];
      float most = top[i];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        float score = scores[i][j] * s.scale;
        if (s.cap > 0) score = s.cap * tanhf(score / s.cap);
        scores[i][j] = is_seen(s, span, b, first + row, key + x + kSide * j) ? score : -INFINITY;
        most = fmaxf(most, scores[i][j]);
      }
      most = row_max(most);
      const float base = most == -INFINITY ? 0.0f : most;
      const float shrink = expf(top[i] - base);
      top[i] = most;
      sum[i] *= shrink;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float probability = expf(scores[i][j] - base);
        sum[i] += probability;
        p[row * kWide + x + kSide * j] = probability;
      }
#pragma unroll
      for (int c = 0; c < D / kSide; ++c) out[i][c] *= shrink;
    }
    __syncwarp();
    add_gemm(out, p, kWide, kKeys, v, y, x);
  }
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int row = first + y + kSide * i;
    const float total = row_sum(sum[i]), factor = total == 0 ? 0.0f : 1 / total;
    if (row >= s.queries) continue;
    if (x == 0) a.lse[(b * s.heads + h) * s.queries + row] = total == 0 ? 0.0f : top[i] + logf(total);
    float* const to = a.out + (b * s.queries + row) * s.heads * s.value + h * s.value;
#pragma unroll
    for (int c = 0; c < D / kSide; ++c) {
      const int column = 4 * x + c / 4 * 64 + c % 4;
      if (column < s.value) to[column] = out[i][c] * factor;
    }
  }
}

// Own rows are queries and others keys, or, OfKeys, the other way round. D, R: see attend_forward_kernel; N: other rows
// per thread.
template <bool OfKeys, int D, int R, int N>
__global__ void __launch_bounds__(kThreads, R > 2 ? 1 : 2) attend_backward_kernel(const AttendBackward<float> a) {
  PRUN_SHARED(shared);
  constexpr int kRows = kSide * R, kOthers = kSide * N, kStride = Rows<D>::kStride, kWide = kOthers + 4;
  const AttendSizes& s = a.sizes;
  const Rows<D> own1{reinterpret_cast<float*>(shared)}, own2{own1.data + kRows * kStride};
  const Rows<D> other1{own2.data + kRows * kStride}, other2{other1.data + kOthers * kStride};
  float *const ds_rows = other2.data + kOthers * kStride, *const p_rows = ds_rows + kRows * kWide;
  KeySpan* const spans = reinterpret_cast<KeySpan*>(p_rows + kRows * kWide);  // of the tile of queries
  const Heads<const float>&left1 = OfKeys ? a.k : a.q, &left2 = OfKeys ? a.v : a.dout;
  const Heads<const float>&right1 = OfKeys ? a.q : a.k, &right2 = OfKeys ? a.dout : a.v;
  const int own_heads = OfKeys ? s.kv_heads : s.heads, own_rows = OfKeys ? s.keys : s.queries,
            other_rows = OfKeys ? s.queries : s.keys;
  const int64_t b = blockIdx.x / own_heads;
  const int own_head = static_cast<int>(blockIdx.x % own_heads);
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const int first = static_cast<int>(OfKeys ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * kRows;
  own1.load(kRows, left1.head(b, own_head, s.head) + first * left1.row, left1.row, own_rows - first, s.head, s.vector);
  own2.load(kRows, left2.head(b, own_head, s.value) + first * left2.row, left2.row, own_rows - first, s.value,
            s.vector);
  TileRange tiles{};
  if constexpr (OfKeys) {
    const int count = (s.queries + kSpanTile - 1) / kSpanTile;
    tiles = query_tiles(a.tiles + b * count, count, first, min(first + kRows, s.keys), kOthers);
  } else {
    for (int i = threadIdx.x; i < kRows; i += kThreads) spans[i] = span_of(s, b, first + i);
    __syncthreads();
    tiles = key_tiles(seen_by(spans, kRows), kOthers);
  }
  float sum1[R][D / kSide] = {}, sum2[OfKeys ? R : 1][D / kSide] = {};
  const int first_head = OfKeys ? s.first_user(own_head) : own_head,
            end_head = OfKeys ? s.first_user(own_head + 1) : own_head + 1;
  for (int head = first_head; head < end_head; ++head) {
    const float* lse = a.lse + (b * s.heads + head) * s.queries;
    const float* dots = a.dots + (b * s.heads + head) * s.queries;
    const int from = OfKeys ? head : s.kv_head(head);
    for (int other = tiles.from * kOthers; other < (tiles.from + tiles.count) * kOthers; other += kOthers) {
      __syncthreads();
      other1.load(kOthers, right1.head(b, from, s.head) + other * right1.row, right1.row, other_rows - other, s.head,
                  s.vector);
      other2.load(kOthers, right2.head(b, from, s.value) + other * right2.row, right2.row, other_rows - other, s.value,
                  s.vector);
      if (OfKeys)
        for (int i = threadIdx.x; i < kOthers; i += kThreads) spans[i] = span_of(s, b, other + i);
      __syncthreads();
      if (OfKeys && !seen_by(spans, kOthers).any(first, first + kRows)) continue;
      float p[R][N], ds[R][N];
      multiply_rows(p, own1, other1, y, x);
      multiply_rows(ds, own2, other2, y, x);
#pragma unroll
      for (int i = 0; i < R; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const int own = y + kSide * i, beside = x + kSide * j, place = own * kWide + beside;
          const int query = OfKeys ? other + beside : first + own, key = OfKeys ? first + own : other + beside;
          const bool seen = is_seen(s, spans[OfKeys ? beside : own], b, query, key);
          float score = p[i][j] * s.scale, slope = 1;
          if (s.cap > 0) {
            const float t = tanhf(score / s.cap);
            score = s.cap * t, slope = 1 - t * t;
          }
          const float probability = seen ? expf(score - lse[query]) : 0.0f;
          ds_rows[place] = seen ? probability * (ds[i][j] - dots[query]) * slope : 0.0f;
          if (OfKeys) p_rows[place] = probability;
        }
      __syncwarp();
      add_gemm(sum1, ds_rows, kWide, kOthers, other1, y, x);
      if constexpr (OfKeys) add_gemm(sum2, p_rows, kWide, kOthers, other2, y, x);
    }
  }
  const Heads<float>& to = OfKeys ? a.dk : a.dq;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int row = first + y + kSide * i;
    if (row >= own_rows) continue;
    float* const to1 = to.head(b, own_head, s.head) + row * to.row;
    float* const to2 = a.dv.head(b, own_head, s.value) + row * a.dv.row;
#pragma unroll
    for (int c = 0; c < D / kSide; ++c) {
      const int column = 4 * x + c / 4 * 64 + c % 4;
      if (column < s.head) to1[column] = sum1[i][c] * s.scale;
      if constexpr (OfKeys)
        if (column < s.value) to2[column] = sum2[i][c];
    }
  }
}

dim3 grid_of(const AttendSizes& s, int heads, int length, int rows) {
  return dim3(static_cast<unsigned>(s.batch * heads), (length + rows - 1) / rows);
}

template <int D, int R, int N>
std::unique_ptr<Kernel> make_forward(const AttendForward<float>& a) {
  constexpr int kRows = kSide * R, kKeys = kSide * N;
  constexpr int kBytes =
      ((kRows + 2 * kKeys) * Rows<D>::kStride + kRows * (kKeys + 4)) * static_cast<int>(sizeof(float)) +
      kRows * static_cast<int>(sizeof(KeySpan));
  allow_shared(attend_forward_kernel<D, R, N>, kBytes);
  const dim3 grid = grid_of(a.sizes, a.sizes.heads, a.sizes.queries, kRows);
  return kernel_of(
      [a, grid](cudaStream_t stream) { launch(attend_forward_kernel<D, R, N>, grid, kThreads, kBytes, stream, a); });
}

template <int D, int R, int N>
std::unique_ptr<Kernel> make_backward(const AttendBackward<float>& a) {
  constexpr int kRows = kSide * R, kOthers = kSide * N, kMost = kRows > kOthers ? kRows : kOthers;
  constexpr int kBytes =
      (2 * (kRows + kOthers) * Rows<D>::kStride + 2 * kRows * (kOthers + 4)) * static_cast<int>(sizeof(float)) +
      kMost * static_cast<int>(sizeof(KeySpan));
  allow_shared(attend_backward_kernel<false, D, R, N>, kBytes);
  allow_shared(attend_backward_kernel<true, D, R, N>, kBytes);
  const dim3 queries = grid_of(a.sizes, a.sizes.heads, a.sizes.queries, kRows),
             keys = grid_of(a.sizes, a.sizes.kv_heads, a.sizes.keys, kRows);
  return kernel_of([a, queries, keys](cudaStream_t stream) {
    run_dots(dots_of(a), stream);
    run_tiles(a, stream);
    launch(attend_backward_kernel<false, D, R, N>, queries, kThreads, kBytes, stream, a);
    launch(attend_backward_kernel<true, D, R, N>, keys, kThreads, kBytes, stream, a);
  });
}

}  // namespace

std::unique_ptr<Kernel> attend_forward(const AttendForward<float>& a) {
  const int most = a.sizes.head > a.sizes.value ? a.sizes.head : a.sizes.value;
  if (most <= 64) return make_forward<64, 4, 4>(a);
  if (most <= 128) return make_forward<128, 4, 2>(a);
  return make_forward<256, 2, 1>(a);
}

std::unique_ptr<Kernel> attend_backward(const AttendBackward<float>& a) {
  const int most = a.sizes.head > a.sizes.value ? a.sizes.head : a.sizes.value;
  if (most <= 64) return make_backward<64, 4, 2>(a);
  if (most <= 128) return make_backward<128, 2, 2>(a);
  return make_backward<256, 1, 1>(a);
}

}  // namespace prun::cuda
