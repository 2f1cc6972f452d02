// Multi-head attention and its gradient in strips of query rows: scores of one strip against the keys that it may see
// live in scratch, never a T x T matrix (Dao et al., "FlashAttention", 2022, whose backward pass this follows).
//
// Surprising fact: each head's q, k and v are copied to padded f32 tiles first. That costs 1/T of the products, serves
// bf16 and odd head sizes alike, and makes every product a plain one on contiguous rows.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/simd.h"
#include "device/cpu/tile.h"
#include "device/cpu/vector_math.h"

namespace prun::cpu {
namespace {

constexpr int64_t kStrip = 32;  // query rows at a time

struct Sizes {
  int64_t batch, length, heads, kv_heads, head;  // of a head, `head` elements
  int64_t width, stride, k, v;                   // of out's and qkv's rows; where k and v begin in the latter
  int64_t keys, lanes;                           // length and head padded to whole tiles
  bool causal;
  float scale;

  int64_t strip_rows(int64_t first) const { return std::min(kStrip, length - first); }
  // Keys that rows [first, first + kStrip) may see, in whole tiles.
  int64_t visible(int64_t first) const {
    return causal ? std::min(keys, round_up(first + strip_rows(first), kTileColumns)) : keys;
  }
};

Sizes sizes_of(const OpView& view) {
  const Tensor& qkv = view.read(0);
  PRUN_CHECK(qkv.shape.size() == 3, shape_text(qkv.shape));
  Sizes s;
  s.batch = qkv.shape[0];
  s.length = qkv.shape[1];
  s.stride = qkv.shape[2];
  s.heads = view.attrs().integer("heads", 1);
  s.kv_heads = view.attrs().integer("kv_heads", s.heads);
  PRUN_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.stride % (s.heads + 2 * s.kv_heads) == 0,
             fmt::format("{} heads {} kv_heads {}", shape_text(qkv.shape), s.heads, s.kv_heads));
  s.head = s.stride / (s.heads + 2 * s.kv_heads);
  s.width = s.heads * s.head;
  s.k = s.width;
  s.v = s.k + s.kv_heads * s.head;
  s.keys = round_up(s.length, kTileColumns);
  s.lanes = round_up(s.head, kTileColumns);
  s.causal = view.attrs().integer("causal", 0) != 0;
  s.scale = 1.0f / std::sqrt(static_cast<float>(s.head));
  return s;
}

// to[row][0..lanes) = scale · from[row · stride ..], padded with zeros.
template <class T>
PRUN_CLONES void pack_rows(const T* from, int64_t stride, float* to, int64_t rows, int64_t head, int64_t lanes,
                           float scale) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = from + row * stride;
    float* y = to + row * lanes;
#pragma omp simd
    for (int64_t i = 0; i < head; ++i) y[i] = scale * load(x[i]);
    for (int64_t i = head; i < lanes; ++i) y[i] = 0;
  }
}

// to[i][row] = from[row · stride + i], rows padded with zeros to `keys`. In squares, so that both sides stay in cache.
template <class T>
PRUN_CLONES void pack_transposed(const T* from, int64_t stride, float* to, int64_t rows, int64_t keys, int64_t head) {
  constexpr int64_t kSquare = 16;
  for (int64_t row = 0; row < keys; row += kSquare) {
    const int64_t count = rows - row < kSquare ? rows - row : kSquare;
    for (int64_t i = 0; i < head; ++i) {
      float* y = to + i * keys + row;
      for (int64_t r = 0; r < count; ++r) y[r] = load(from[(row + r) * stride + i]);
      for (int64_t r = count < 0 ? 0 : count; r < kSquare; ++r) y[r] = 0;
    }
  }
}

template <class T>
PRUN_CLONES void unpack_rows(const float* from, int64_t lanes, T* to, int64_t stride, int64_t rows, int64_t head,
                             float scale) {
  for (int64_t row = 0; row < rows; ++row) {
#pragma omp simd
    for (int64_t i = 0; i < head; ++i) store(to[row * stride + i], scale * from[row * lanes + i]);
  }
}

// Scores to unnormalized probabilities; gives each row's log-sum-exp and 1/sum. Row r sees `seen` keys, one more each
// row if causal.
PRUN_CLONES void softmax_rows(float* scores, int64_t keys, int64_t rows, int64_t padded, int64_t seen, int64_t more,
                              float* lse, float* inverse) {
  for (int64_t r = 0; r < rows; ++r, seen += more) {
    float* s = scores + r * keys;
    float top = s[0];
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < seen; ++j) top = s[j] > top ? s[j] : top;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < seen; ++j) {
      const float p = exp_f32(s[j] - top);
      s[j] = p;
      sum += p;
    }
    for (int64_t j = seen; j < padded; ++j) s[j] = 0;
    lse[r] = top + std::log(sum);
    inverse[r] = 1.0f / sum;
  }
}

template <class T>
PRUN_CLONES void write_output(const float* from, int64_t lanes, const float* inverse, T* to, int64_t stride,
                              int64_t rows, int64_t head) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < head; ++i) store(to[r * stride + i], inverse[r] * from[r * lanes + i]);
  }
}

// In place: scores become P = exp(S - lse), dp becomes dS = P·(dP - Σ out·dout); both 0 where a row may not look.
PRUN_CLONES void score_gradients(float* scores, float* dp, int64_t keys, int64_t rows, int64_t padded, int64_t seen,
                                 int64_t more, const float* lse, const float* along) {
  for (int64_t r = 0; r < rows; ++r, seen += more) {
    float *s = scores + r * keys, *d = dp + r * keys;
    const float shift = lse[r], delta = along[r];
#pragma omp simd
    for (int64_t j = 0; j < seen; ++j) {
      const float p = exp_f32(s[j] - shift);
      s[j] = p;
      d[j] = p * (d[j] - delta);
    }
    for (int64_t j = seen; j < padded; ++j) s[j] = 0, d[j] = 0;
  }
}

template <class T>
PRUN_CLONES void row_dots(const T* a, const T* b, int64_t stride, int64_t rows, int64_t head, float* dots) {
  for (int64_t r = 0; r < rows; ++r) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < head; ++i) sum += load(a[r * stride + i]) * load(b[r * stride + i]);
    dots[r] = sum;
  }
}

int64_t forward_floats(const Sizes& s) {  // per thread: kᵀ, v, and a strip's q, scores, result
  return s.lanes * s.keys + s.keys * s.lanes + kStrip * (2 * s.lanes + s.keys + 1);
}

// Head h of one sample; qkv, out and lse are the sample's.
template <class T>
void forward_head(const Sizes& s, int64_t h, const T* qkv, T* out, float* lse, float* scratch) {
  const int64_t stride = s.stride, shared = h * s.kv_heads / s.heads * s.head;
  const T* own = qkv + h * s.head;
  out += h * s.head;
  lse += h * s.length;
  float *k = scratch, *v = k + s.lanes * s.keys, *q = v + s.keys * s.lanes, *scores = q + kStrip * s.lanes;
  float *result = scores + kStrip * s.keys, *inverse = result + kStrip * s.lanes;
  pack_transposed(qkv + s.k + shared, stride, k, s.length, s.keys, s.head);
  pack_rows(qkv + s.v + shared, stride, v, s.length, s.head, s.lanes, 1.0f);
  std::memset(v + s.length * s.lanes, 0, static_cast<size_t>((s.keys - s.length) * s.lanes) * sizeof(float));
  for (int64_t first = 0; first < s.length; first += kStrip) {
    const int64_t rows = s.strip_rows(first), visible = s.visible(first);
    pack_rows(own + first * stride, stride, q, rows, s.head, s.lanes, s.scale);
    tile_product({rows, visible, s.head, q, s.lanes, 1, k, s.keys, scores, s.keys, false});
    softmax_rows(scores, s.keys, rows, visible, s.causal ? first + 1 : s.length, s.causal ? 1 : 0, lse + first,
                 inverse);
    tile_product({rows, s.lanes, visible, scores, s.keys, 1, v, s.lanes, result, s.lanes, false});
    write_output(result, s.lanes, inverse, out + first * s.width, s.width, rows, s.head);
  }
}

int64_t backward_floats(const Sizes& s) {  // per thread: kᵀ, vᵀ, k, dk, dv, and a strip's q, dout, dq, P, dS, dots
  return 5 * s.lanes * s.keys + kStrip * (3 * s.lanes + 2 * s.keys + 1);
}

// A head of keys and values of one sample, with the heads of queries that share it.
template <class T>
void backward_head(const Sizes& s, int64_t shared, const T* qkv, const T* out, const T* dout, const float* lse, T* dqkv,
                   float* scratch) {
  const int64_t stride = s.stride, k_at = s.k + shared * s.head, v_at = s.v + shared * s.head, tile = s.lanes * s.keys;
  float *kt = scratch, *vt = kt + tile, *k = vt + tile, *dk = k + tile, *dv = dk + tile, *q = dv + tile;
  float *go = q + kStrip * s.lanes, *dq = go + kStrip * s.lanes, *p = dq + kStrip * s.lanes;
  float *ds = p + kStrip * s.keys, *dots = ds + kStrip * s.keys;
  pack_transposed(qkv + k_at, stride, kt, s.length, s.keys, s.head);
  pack_transposed(qkv + v_at, stride, vt, s.length, s.keys, s.head);
  pack_rows(qkv + k_at, stride, k, s.length, s.head, s.lanes, 1.0f);
  std::memset(k + s.length * s.lanes, 0, static_cast<size_t>((s.keys - s.length) * s.lanes) * sizeof(float));
  std::memset(dk, 0, static_cast<size_t>(2 * tile) * sizeof(float));
  const int64_t group = s.heads / s.kv_heads;
  for (int64_t h = shared * group; h < (shared + 1) * group; ++h) {
    const int64_t narrow = h * s.head;
    for (int64_t first = 0; first < s.length; first += kStrip) {
      const int64_t rows = s.strip_rows(first), visible = s.visible(first), at = first * s.width + narrow;
      pack_rows(qkv + first * stride + narrow, stride, q, rows, s.head, s.lanes, s.scale);
      pack_rows(dout + at, s.width, go, rows, s.head, s.lanes, 1.0f);
      row_dots(out + at, dout + at, s.width, rows, s.head, dots);
      tile_product({rows, visible, s.head, q, s.lanes, 1, kt, s.keys, p, s.keys, false});
      tile_product({rows, visible, s.head, go, s.lanes, 1, vt, s.keys, ds, s.keys, false});
      score_gradients(p, ds, s.keys, rows, visible, s.causal ? first + 1 : s.length, s.causal ? 1 : 0,
                      lse + h * s.length + first, dots);
      tile_product({visible, s.lanes, rows, p, 1, s.keys, go, s.lanes, dv, s.lanes, true});
      tile_product({visible, s.lanes, rows, ds, 1, s.keys, q, s.lanes, dk, s.lanes, true});
      tile_product({rows, s.lanes, visible, ds, s.keys, 1, k, s.lanes, dq, s.lanes, false});
      unpack_rows(dq, s.lanes, dqkv + first * stride + narrow, stride, rows, s.head, s.scale);
    }
  }
  unpack_rows(dk, s.lanes, dqkv + k_at, stride, s.length, s.head, 1.0f);
  unpack_rows(dv, s.lanes, dqkv + v_at, stride, s.length, s.head, 1.0f);
}

int64_t scratch_bytes(const OpView& view, int64_t (*floats)(const Sizes&)) {
  return view.threads() * round_up(floats(sizes_of(view)) * static_cast<int64_t>(sizeof(float)), kAlignBytes);
}

std::unique_ptr<Kernel> make_forward(const OpView& view) {
  const Sizes s = sizes_of(view);
  view.expect_count(view.write(0), s.batch * s.length * s.width);
  view.expect_count(view.write(1), s.batch * s.heads * s.length);
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    return kernel_of([s, qkv = view.in<T>(0), out = view.out<T>(0), lse = view.out<float>(1), threads = view.threads(),
                      share = scratch_bytes(view, forward_floats) / view.threads(),
                      scratch = view.scratch(scratch_bytes(view, forward_floats))] {
      parallel_for(threads, s.batch * s.heads, [&](int64_t i, int thread) {
        const int64_t b = i / s.heads, h = i % s.heads;
        forward_head(s, h, qkv + b * s.length * s.stride, out + b * s.length * s.width, lse + b * s.heads * s.length,
                     reinterpret_cast<float*>(scratch.data + thread * share));
      });
    });
  });
}

std::unique_ptr<Kernel> make_backward(const OpView& view) {
  const Sizes s = sizes_of(view);
  for (size_t i : {1, 2}) view.expect_count(view.read(i), s.batch * s.length * s.width);
  view.expect_count(view.read(3), s.batch * s.heads * s.length);
  view.expect_count(view.write(0), s.batch * s.length * s.stride);
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    return kernel_of([s, qkv = view.in<T>(0), out = view.in<T>(1), dout = view.in<T>(2), lse = view.in<float>(3),
                      dqkv = view.out<T>(0), threads = view.threads(),
                      share = scratch_bytes(view, backward_floats) / view.threads(),
                      scratch = view.scratch(scratch_bytes(view, backward_floats))] {
      parallel_for(threads, s.batch * s.kv_heads, [&](int64_t i, int thread) {
        const int64_t b = i / s.kv_heads, wide = b * s.length * s.stride, narrow = b * s.length * s.width;
        backward_head(s, i % s.kv_heads, qkv + wide, out + narrow, dout + narrow, lse + b * s.heads * s.length,
                      dqkv + wide, reinterpret_cast<float*>(scratch.data + thread * share));
      });
    });
  });
}

constexpr KernelEntry kEntries[] = {
    {"attention", make_forward, Accepts::floats, [](const OpView& v) { return scratch_bytes(v, forward_floats); }},
    {"attention_grad", make_backward, Accepts::floats,
     [](const OpView& v) { return scratch_bytes(v, backward_floats); }}};

}  // namespace

std::span<const KernelEntry> attention_kernels() { return kEntries; }

}  // namespace prun::cpu
