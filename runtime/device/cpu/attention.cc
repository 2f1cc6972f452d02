// Multi-head attention and its gradient in strips of queries: scores of one strip against the keys that it may see live
// in scratch, never a T x T matrix (Dao et al., "FlashAttention", 2022, whose backward pass this follows).
//
// Surprising fact: each head's q, k and v are copied to f32 tiles first. That costs 1/T of the products, serves bf16
// and odd head sizes alike, and makes every product a plain one on contiguous rows. Where the CPU multiplies bf16,
// attention_bf16.h takes its heads.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#include "device/cpu/attention_bf16.h"
#include "device/cpu/attention_rows.h"
#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/tile.h"

namespace prun::cpu {
namespace {

struct Sizes {
  int64_t batch, length, heads, kv_heads, head;  // of a head, `head` elements
  int64_t width, stride, k, v;                   // of out's and qkv's rows; where k and v begin in the latter
  int64_t lanes;                                 // head padded to whole tiles
  bool causal;
  float scale;

  int64_t strip_rows(int64_t first) const { return std::min(kStrip, length - first); }
  Sight sight(int64_t first) const { return causal ? Sight{first + 1, 1} : Sight{length, 0}; }
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
  s.lanes = round_up(s.head, kTileColumns);
  s.causal = view.attrs().integer("causal", 0) != 0;
  s.scale = 1.0f / std::sqrt(static_cast<float>(s.head));
  return s;
}

// Elements from the rows of a head to those of the next one: q's, k's and v's, and in tensors as wide as out; 0: none.
struct Next {
  int64_t q = 0, kv = 0, narrow = 0;
  Next(const Sizes& s, int64_t sample, int64_t h) {
    const auto shared = [&](int64_t head) { return head * s.kv_heads / s.heads * s.head; };
    if (h + 1 < s.heads) {
      q = narrow = s.head;
      kv = shared(h + 1) - shared(h);
    } else if (sample + 1 < s.batch) {
      q = s.length * s.stride - h * s.head;
      kv = s.length * s.stride - shared(h);
      narrow = s.length * s.width - h * s.head;
    }
  }
};

// Asks for rows that are needed soon, into the second-level cache, while products are computed: a head's are pieces of
// longer rows, which the machine does not fetch ahead by itself.
template <bool written, class T>
void ask_rows(const T* first, int64_t stride, int64_t rows, int64_t head) {
  const int64_t bytes = head * static_cast<int64_t>(sizeof(T));
  for (int64_t r = 0; r < rows; ++r, first += stride)
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const char*>(first) + i, written, 2);
}

int64_t forward_floats(const Sizes& s) {  // per thread: k, v, and a strip's q, scores, result
  return 2 * s.length * s.lanes + kStrip * (s.head + s.length + s.lanes);
}

// Head h of one sample; qkv, out and lse are the sample's.
template <class T>
void forward_head(const Sizes& s, int64_t h, const Next& next, const T* qkv, T* out, float* lse, float* scratch) {
  const int64_t stride = s.stride, shared = h * s.kv_heads / s.heads * s.head;
  const T* own = qkv + h * s.head;
  out += h * s.head;
  lse += h * s.length;
  float *k = scratch, *v = k + s.length * s.lanes, *q = v + s.length * s.lanes, *scores = q + kStrip * s.head;
  float *result = scores + kStrip * s.length, strip_lse[kStrip], inverse[kStrip];
  pack_rows(qkv + s.k + shared, stride, k, s.length, s.head, s.lanes, 1.0f);
  pack_rows(qkv + s.v + shared, stride, v, s.length, s.head, s.lanes, 1.0f);
  for (int64_t first = 0; first < s.length; first += kStrip) {
    const int64_t rows = s.strip_rows(first);
    const Strip products(s.sight(first), rows);
    pack_lanes(own + first * stride, stride, q, rows, s.head, s.scale);
    if (next.q != 0) ask_rows<false>(own + first * stride + next.q, stride, rows, s.head);
    products.score(k, s.head, s.lanes, q, scores);
    if (next.kv != 0) ask_rows<false>(qkv + s.k + shared + first * stride + next.kv, stride, rows, s.head);
    ask_rows<true>(out + first * s.width, s.width, rows, s.head);
    softmax_lanes(scores, products.keys, s.sight(first), strip_lse, inverse);
    if (next.kv != 0) ask_rows<false>(qkv + s.v + shared + first * stride + next.kv, stride, rows, s.head);
    products.gather(scores, v, s.lanes, result);
    unpack_scaled_rows(result, s.lanes, inverse, out + first * s.width, s.width, rows, s.head);
    std::copy(strip_lse, strip_lse + rows, lse + first);
  }
}

// The same of bf16 on squares of products.
void forward_head_in_bf16(const Sizes& s, int64_t h, const Next& next, const bf16* qkv, bf16* out, float* lse,
                          float* scratch) {
  const int64_t shared = h * s.kv_heads / s.heads * s.head;
  Bf16Forward head({qkv + s.k + shared, s.stride}, {qkv + s.v + shared, s.stride}, s.length, s.head, scratch);
  const HeadRows queries{qkv + h * s.head, s.stride};
  float strip_lse[kStrip], inverse[kStrip];
  for (int64_t first = 0; first < s.length; first += kStrip) {
    const int64_t rows = s.strip_rows(first);
    if (next.q != 0) ask_rows<false>(queries.from(first).data + next.q, s.stride, rows, s.head);
    if (next.kv != 0) {
      ask_rows<false>(qkv + s.k + shared + first * s.stride + next.kv, s.stride, rows, s.head);
      ask_rows<false>(qkv + s.v + shared + first * s.stride + next.kv, s.stride, rows, s.head);
    }
    ask_rows<true>(out + first * s.width + h * s.head, s.width, rows, s.head);
    const float* result = head.strip(queries.from(first), rows, s.sight(first), s.scale, strip_lse, inverse);
    round_rows(result, head.lanes(), inverse, out + first * s.width + h * s.head, s.width, rows, s.head);
    std::copy(strip_lse, strip_lse + rows, lse + h * s.length + first);
  }
}

int64_t backward_floats(const Sizes& s) {  // per thread: k, v, dk, dv, and a strip's q, dout (both ways), dq, P, dS
  return 4 * s.length * s.lanes + kStrip * (3 * s.lanes + 2 * s.head + 2 * s.length);
}

// A head of keys and values of one sample, with the heads of queries that share it.
template <class T>
void backward_head(const Sizes& s, int64_t shared, int64_t sample, const T* qkv, const T* out, const T* dout,
                   const float* lse, T* dqkv, float* scratch) {
  const int64_t stride = s.stride, k_at = s.k + shared * s.head, v_at = s.v + shared * s.head;
  const int64_t tile = s.length * s.lanes, strip = kStrip * s.lanes;
  float *k = scratch, *v = k + tile, *dk = v + tile, *dv = dk + tile, *q = dv + tile, *go = q + strip, *dq = go + strip;
  float *q_lanes = dq + strip, *go_lanes = q_lanes + kStrip * s.head, *p = go_lanes + kStrip * s.head;
  float *ds = p + kStrip * s.length, dots[kStrip] = {}, strip_lse[kStrip] = {};
  pack_rows(qkv + k_at, stride, k, s.length, s.head, s.lanes, 1.0f);
  pack_rows(qkv + v_at, stride, v, s.length, s.head, s.lanes, 1.0f);
  std::memset(dk, 0, 2 * tile * sizeof(float));
  const int64_t group = s.heads / s.kv_heads;
  for (int64_t h = shared * group; h < (shared + 1) * group; ++h) {
    const int64_t narrow = h * s.head;
    const Next next(s, sample, h);
    for (int64_t first = 0; first < s.length; first += kStrip) {
      const int64_t rows = s.strip_rows(first), at = first * s.width + narrow;
      const Strip products(s.sight(first), rows);
      const float* row_lse = lse + h * s.length + first;
      std::copy(row_lse, row_lse + rows, strip_lse);
      pack_rows(qkv + first * stride + narrow, stride, q, rows, s.head, s.lanes, s.scale);
      pack_rows(dout + at, s.width, go, rows, s.head, s.lanes, 1.0f);
      pack_lanes(q, s.lanes, q_lanes, rows, s.head, 1.0f);
      pack_lanes(go, s.lanes, go_lanes, rows, s.head, 1.0f);
      row_dots(out + at, dout + at, s.width, rows, s.head, dots);
      const int64_t wide = first * stride;
      if (next.q != 0) ask_rows<false>(qkv + wide + narrow + next.q, stride, rows, s.head);
      products.score(k, s.head, s.lanes, q_lanes, p);
      if (next.kv != 0) ask_rows<false>(qkv + wide + k_at + next.kv, stride, rows, s.head);
      products.score(v, s.head, s.lanes, go_lanes, ds);
      if (next.kv != 0) ask_rows<false>(qkv + wide + v_at + next.kv, stride, rows, s.head);
      score_gradients(p, ds, products.keys, s.sight(first), strip_lse, dots);
      products.scatter(p, go, s.lanes, dv);
      if (next.narrow != 0) ask_rows<false>(out + at + next.narrow, s.width, rows, s.head);
      ask_rows<true>(dqkv + wide + narrow, stride, rows, s.head);
      products.scatter(ds, q, s.lanes, dk);
      if (next.narrow != 0) ask_rows<false>(dout + at + next.narrow, s.width, rows, s.head);
      ask_rows<true>(dqkv + wide + k_at, stride, rows, s.head);
      ask_rows<true>(dqkv + wide + v_at, stride, rows, s.head);
      products.gather(ds, k, s.lanes, dq);
      unpack_rows(dq, s.lanes, dqkv + first * stride + narrow, stride, rows, s.head, s.scale);
    }
  }
  unpack_rows(dk, s.lanes, dqkv + k_at, stride, s.length, s.head, 1.0f);
  unpack_rows(dv, s.lanes, dqkv + v_at, stride, s.length, s.head, 1.0f);
}

void backward_head_in_bf16(const Sizes& s, int64_t shared, int64_t sample, const bf16* qkv, const bf16* out,
                           const bf16* dout, const float* lse, bf16* dqkv, float* scratch) {
  const int64_t stride = s.stride, k_at = s.k + shared * s.head, v_at = s.v + shared * s.head;
  Bf16Backward head({qkv + k_at, stride}, {qkv + v_at, stride}, s.length, s.length, s.head, scratch);
  const int64_t group = s.heads / s.kv_heads;
  for (int64_t h = shared * group; h < (shared + 1) * group; ++h) {
    for (int64_t first = 0; first < s.length; first += Bf16Backward::kQueries) {
      const int64_t rows = std::min(Bf16Backward::kQueries, s.length - first), at = first * s.width + h * s.head;
      const Next next(s, sample, h);
      const int64_t wide = first * stride;
      if (next.q != 0) {
        ask_rows<false>(qkv + wide + h * s.head + next.q, stride, rows, s.head);
        ask_rows<false>(out + at + next.narrow, s.width, rows, s.head);
        ask_rows<false>(dout + at + next.narrow, s.width, rows, s.head);
      }
      for (int64_t which : {k_at, v_at}) {
        if (next.kv != 0) ask_rows<false>(qkv + wide + which + next.kv, stride, rows, s.head);
        ask_rows<true>(dqkv + wide + which, stride, rows, s.head);
      }
      ask_rows<true>(dqkv + wide + h * s.head, stride, rows, s.head);
      head.queries({qkv + first * stride + h * s.head, stride}, {out + at, s.width}, {dout + at, s.width}, rows,
                   s.sight(first), s.scale, lse + h * s.length + first);
      for (int64_t r = 0; r < rows; r += kStrip)
        round_rows(head.dq(r / kStrip), head.lanes(), s.scale, dqkv + (first + r) * stride + h * s.head, stride,
                   std::min(kStrip, rows - r), s.head);
    }
  }
  round_rows(head.dk(), head.lanes(), s.scale, dqkv + k_at, stride, s.length, s.head);
  round_rows(head.dv(), head.lanes(), 1.0f, dqkv + v_at, stride, s.length, s.head);
}

// As much on every machine, so that a program takes the same memory wherever it is compiled.
template <bool kForward>
int64_t scratch_bytes(const OpView& view) {
  const Sizes s = sizes_of(view);
  int64_t floats = kForward ? forward_floats(s) : backward_floats(s);
  if (view.read(0).dtype == Dtype::bf16)
    floats = std::max(
        floats, kForward ? bf16_forward_floats(s.length, s.head) : bf16_backward_floats(s.length, s.length, s.head));
  return view.threads() * round_up(floats * static_cast<int64_t>(sizeof(float)), kAlignBytes);
}

template <class T>
std::unique_ptr<Kernel> forward_kernel(const OpView& view) {
  const Sizes s = sizes_of(view);
  view.expect_count(view.write(0), s.batch * s.length * s.width);
  view.expect_count(view.write(1), s.batch * s.heads * s.length);
  return kernel_of([s, qkv = view.in<T>(0), out = view.out<T>(0), lse = view.out<float>(1), threads = view.threads(),
                    share = scratch_bytes<true>(view) / view.threads(),
                    scratch = view.scratch(scratch_bytes<true>(view))] {
    parallel_for(threads, s.batch * s.heads, [&](int64_t i, int thread) {
      const int64_t b = i / s.heads, h = i % s.heads;
      const auto head = [&] {
        if constexpr (std::is_same_v<T, bf16>)
          if (has_pair_squares()) return forward_head_in_bf16;
        return forward_head<T>;
      }();
      head(s, h, Next(s, b, h), qkv + b * s.length * s.stride, out + b * s.length * s.width,
           lse + b * s.heads * s.length, reinterpret_cast<float*>(scratch.data + thread * share));
    });
  });
}

template <class T>
std::unique_ptr<Kernel> backward_kernel(const OpView& view) {
  const Sizes s = sizes_of(view);
  for (size_t i : {1, 2}) view.expect_count(view.read(i), s.batch * s.length * s.width);
  view.expect_count(view.read(3), s.batch * s.heads * s.length);
  view.expect_count(view.write(0), s.batch * s.length * s.stride);
  return kernel_of([s, qkv = view.in<T>(0), out = view.in<T>(1), dout = view.in<T>(2), lse = view.in<float>(3),
                    dqkv = view.out<T>(0), threads = view.threads(),
                    share = scratch_bytes<false>(view) / view.threads(),
                    scratch = view.scratch(scratch_bytes<false>(view))] {
    parallel_for(threads, s.batch * s.kv_heads, [&](int64_t i, int thread) {
      const int64_t b = i / s.kv_heads, wide = b * s.length * s.stride, narrow = b * s.length * s.width;
      const auto head = [&] {
        if constexpr (std::is_same_v<T, bf16>)
          if (has_pair_squares()) return backward_head_in_bf16;
        return backward_head<T>;
      }();
      head(s, i % s.kv_heads, b, qkv + wide, out + narrow, dout + narrow, lse + b * s.heads * s.length, dqkv + wide,
           reinterpret_cast<float*>(scratch.data + thread * share));
    });
  });
}

}  // namespace

const Family attention_kernels = {
    {"attention", PRUN_FLOAT_MAKER(read(0), forward_kernel<T>(view)), Accepts::floats, scratch_bytes<true>},
    {"attention_grad", PRUN_FLOAT_MAKER(read(0), backward_kernel<T>(view)), Accepts::floats, scratch_bytes<false>}};

}  // namespace prun::cpu
