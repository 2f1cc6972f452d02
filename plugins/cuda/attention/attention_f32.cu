// Attention and its gradient in f32 on CUDA cores: for parity, and for plans in f32. The division of work is that of
// attention_forward.cu and attention_backward.cu, with 16x16 threads that each have some rows and columns.
#include "attention_dots.cuh"
#include "attention_rows.cuh"

namespace prun::cuda {
namespace {

// D: the head padded to 64, 128 or 256; R: rows per thread; N: keys per thread.
template <int D, int R, int N>
__global__ void __launch_bounds__(kThreads, 2) forward_kernel(const AttentionForward<float> a) {
  PRUN_SHARED(shared);
  constexpr int kRows = kSide * R, kKeys = kSide * N, kStride = Rows<D>::kStride, kWide = kKeys + 4;
  const AttentionSizes& s = a.sizes;
  const Rows<D> q{reinterpret_cast<float*>(shared)}, k{q.data + kRows * kStride}, v{k.data + kKeys * kStride};
  float* const p = v.data + kKeys * kStride;
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kRows;
  const int64_t b = blockIdx.x / s.heads, h = blockIdx.x % s.heads, shared_head = h / s.group();
  const int keys = s.mask.keys(min(first + kRows, s.length) - 1);
  q.load(kRows, a.q.head(b, h, s.head) + first * a.q.row, a.q.row, s.length - first, s.head, s.vector);
  float* const result = a.out_f32 != nullptr ? a.out_f32 : a.out;
  float out[R][D / kSide] = {}, top[R], sum[R] = {};
  int seen[R];
  for (int i = 0; i < R; ++i) top[i] = -INFINITY, seen[i] = s.mask.keys(min(first + y + kSide * i, s.length - 1));
  for (int key = 0; key < keys; key += kKeys) {
    __syncthreads();
    k.load(kKeys, a.k.head(b, shared_head, s.head) + key * a.k.row, a.k.row, s.length - key, s.head, s.vector);
    v.load(kKeys, a.v.head(b, shared_head, s.head) + key * a.v.row, a.v.row, s.length - key, s.head, s.vector);
    __syncthreads();
    float scores[R][N];
    multiply_rows(scores, q, k, y, x);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      float most = top[i];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        scores[i][j] = key + x + kSide * j < seen[i] ? scores[i][j] * s.scale : -INFINITY;
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
        p[(y + kSide * i) * kWide + x + kSide * j] = probability;
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
    const bool there = row < s.length;
    const float total = row_sum(sum[i]);
    const int64_t at_lse = (b * s.heads + h) * s.length + row,
                  at = (b * s.length + row) * s.heads * s.head + h * s.head;
    float lse = total == 0 ? -INFINITY : top[i] + logf(total), factor = total == 0 ? 0.0f : 1 / total, keep = 0;
    if (there && a.lse_before != nullptr) {
      const float before = a.lse_before[at_lse], most = fmaxf(before, lse);
      const float old_share = expf(before - most), new_share = expf(lse - most), both = old_share + new_share;
      keep = old_share / both, factor *= new_share / both, lse = most + logf(both);
    }
    __syncwarp();  // lse_before may be lse
    if (!there) continue;
    if (x == 0) a.lse[at_lse] = lse;
#pragma unroll
    for (int c = 0; c < D / kSide; ++c) {
      const int column = 4 * x + c / 4 * 64 + c % 4;
      if (column >= s.head) continue;
      const float now = out[i][c] * factor;
      result[at + column] = keep == 0 ? now : now + keep * a.out_before[at + column];
    }
  }
}

// D, R: see forward_kernel; N: other rows per thread.
template <bool OfKeys, int D, int R, int N>
__global__ void __launch_bounds__(kThreads, R > 2 ? 1 : 2) backward_kernel(const AttentionBackward<float> a) {
  PRUN_SHARED(shared);
  constexpr int kRows = kSide * R, kOthers = kSide * N, kStride = Rows<D>::kStride, kWide = kOthers + 4;
  const AttentionSizes& s = a.sizes;
  const Rows<D> own1{reinterpret_cast<float*>(shared)}, own2{own1.data + kRows * kStride};
  const Rows<D> other1{own2.data + kRows * kStride}, other2{other1.data + kOthers * kStride};
  float *const ds_rows = other2.data + kOthers * kStride, *const p_rows = ds_rows + kRows * kWide;
  const Heads<const float>&left1 = OfKeys ? a.k : a.q, &left2 = OfKeys ? a.v : a.dout;
  const Heads<const float>&right1 = OfKeys ? a.q : a.k, &right2 = OfKeys ? a.dout : a.v;
  const int own_heads = OfKeys ? s.kv_heads : s.heads, per_head = OfKeys ? s.group() : 1;
  const int64_t b = blockIdx.x / own_heads, own_head = blockIdx.x % own_heads;
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const int first = static_cast<int>(OfKeys ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * kRows;
  const int end = min(first + kRows, s.length);
  own1.load(kRows, left1.head(b, own_head, s.head) + first * left1.row, left1.row, s.length - first, s.head, s.vector);
  own2.load(kRows, left2.head(b, own_head, s.head) + first * left2.row, left2.row, s.length - first, s.head, s.vector);
  float sum1[R][D / kSide] = {}, sum2[OfKeys ? R : 1][D / kSide] = {};
  for (int of_group = 0; of_group < per_head; ++of_group) {
    const int64_t head = OfKeys ? own_head * per_head + of_group : own_head, shared_head = own_head / s.group();
    const float* lse = a.lse + (b * s.heads + head) * s.length;
    const float* dots = a.dots + (b * s.heads + head) * s.length;
    for (int other = 0; other < (OfKeys ? s.length : s.mask.keys(end - 1)); other += kOthers) {
      if (OfKeys && s.mask.keys(min(other + kOthers, s.length) - 1) <= first) continue;  // all are masked
      const int64_t from = OfKeys ? head : shared_head;
      __syncthreads();
      other1.load(kOthers, right1.head(b, from, s.head) + other * right1.row, right1.row, s.length - other, s.head,
                  s.vector);
      other2.load(kOthers, right2.head(b, from, s.head) + other * right2.row, right2.row, s.length - other, s.head,
                  s.vector);
      __syncthreads();
      float p[R][N], ds[R][N];
      multiply_rows(p, own1, other1, y, x);
      multiply_rows(ds, own2, other2, y, x);
#pragma unroll
      for (int i = 0; i < R; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const int row = first + y + kSide * i, column = other + x + kSide * j;
          const int query = OfKeys ? column : row, key = OfKeys ? row : column;
          const int place = (y + kSide * i) * kWide + x + kSide * j;
          const bool seen = query < s.length && key < s.mask.keys(query);
          const float probability = seen ? expf(p[i][j] * s.scale - lse[query]) : 0.0f;
          ds_rows[place] = seen ? probability * (ds[i][j] - dots[query]) : 0.0f;
          if (OfKeys) p_rows[place] = probability;
        }
      __syncwarp();
      add_gemm(sum1, ds_rows, kWide, kOthers, other1, y, x);
      if constexpr (OfKeys) add_gemm(sum2, p_rows, kWide, kOthers, other2, y, x);
    }
  }
  const GradientHeads<float>& to1 = OfKeys ? a.dk : a.dq;
  float* const out1 = to1.data_f32 != nullptr ? to1.data_f32 : to1.heads.data;
  float* const out2 = a.dv.data_f32 != nullptr ? a.dv.data_f32 : a.dv.heads.data;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int row = first + y + kSide * i;
    if (row >= s.length) continue;
    const int64_t at = b * to1.heads.sample + own_head * s.head + row * to1.heads.row;
#pragma unroll
    for (int c = 0; c < D / kSide; ++c) {
      const int column = 4 * x + c / 4 * 64 + c % 4;
      if (column >= s.head) continue;
      const float before = OfKeys || a.dq_before == nullptr ? 0.0f : a.dq_before[at + column];
      out1[at + column] = before + sum1[i][c] * s.scale;
      if constexpr (OfKeys) out2[at + column] = sum2[i][c];
    }
  }
}

dim3 grid_of(const AttentionSizes& s, int heads, int rows) {
  return dim3(static_cast<unsigned>(s.batch * heads), (s.length + rows - 1) / rows);
}

template <int D, int R, int N>
std::unique_ptr<Kernel> make_forward(const AttentionForward<float>& a) {
  constexpr int kRows = kSide * R, kKeys = kSide * N;
  constexpr int kBytes =
      ((kRows + 2 * kKeys) * Rows<D>::kStride + kRows * (kKeys + 4)) * static_cast<int>(sizeof(float));
  allow_shared(forward_kernel<D, R, N>, kBytes);
  const dim3 grid = grid_of(a.sizes, a.sizes.heads, kRows);
  return kernel_of(
      [a, grid](cudaStream_t stream) { launch(forward_kernel<D, R, N>, grid, kThreads, kBytes, stream, a); });
}

template <int D, int R, int N>
std::unique_ptr<Kernel> make_backward(const AttentionBackward<float>& a) {
  constexpr int kRows = kSide * R, kOthers = kSide * N;
  constexpr int kBytes =
      (2 * (kRows + kOthers) * Rows<D>::kStride + 2 * kRows * (kOthers + 4)) * static_cast<int>(sizeof(float));
  allow_shared(backward_kernel<false, D, R, N>, kBytes);
  allow_shared(backward_kernel<true, D, R, N>, kBytes);
  const dim3 queries = grid_of(a.sizes, a.sizes.heads, kRows), keys = grid_of(a.sizes, a.sizes.kv_heads, kRows);
  return kernel_of([a, queries, keys](cudaStream_t stream) {
    run_dots(dots_of(a), stream);
    launch(backward_kernel<false, D, R, N>, queries, kThreads, kBytes, stream, a);
    launch(backward_kernel<true, D, R, N>, keys, kThreads, kBytes, stream, a);
  });
}

}  // namespace

std::unique_ptr<Kernel> own_attention_forward(const AttentionForward<float>& a) {
  if (a.sizes.head <= 64) return make_forward<64, 4, 4>(a);
  if (a.sizes.head <= 128) return make_forward<128, 4, 2>(a);
  return make_forward<256, 2, 1>(a);
}

std::unique_ptr<Kernel> own_attention_backward(const AttentionBackward<float>& a) {
  if (a.sizes.head <= 64) return make_backward<64, 4, 2>(a);
  if (a.sizes.head <= 128) return make_backward<128, 2, 2>(a);
  return make_backward<256, 1, 1>(a);
}

}  // namespace prun::cuda
