// Multi-head attention and its gradient in strips of queries: scores of one strip against the keys that it may see live
// in scratch, never a T x T matrix (Dao et al., "FlashAttention", 2022, whose backward pass this follows).
//
// Surprising fact: heads of f32 are read where they lie, unless their rows would compete for a few sets of the caches.
// Those of bf16, and of odd sizes, are copied to f32 rows, which costs 1/T of the products and makes every product a
// plain one; with AVX512_BF16, scores are products of pairs of bf16 where these lie. AMX has attention_bf16.h.
#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <type_traits>

#include "base/vector_asm.h"
#include "kernels/cpu/attention/attention_bf16.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/attention/accumulator_tile.h"
#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"

namespace prun::cpu {
namespace {

struct Sizes {
  int64_t batch, length, heads, kv_heads, head;  // of a head, `head` elements
  int64_t width, stride, k, v;                   // of out's and qkv's rows; where k and v begin in the latter
  int64_t lanes;                                 // head padded to whole tiles
  bool causal;
  float scale;
  bool in_place;       // f32 heads are read, and written, where they lie
  bool pairs = false;  // scores of bf16 are products of pairs, of heads where they lie
  bool samples_ahead;  // a second-level cache has room for the next sample, beside one and as much for others

  int64_t strip_rows(int64_t first) const { return std::min(kStrip, length - first); }
  Sight sight(int64_t first) const { return causal ? Sight{first + 1, 1} : Sight{length, 0}; }
};

// Whether `length` rows of f32, `stride` elements apart, leave each other in a second-level cache: rows whose distance
// is a multiple of `kWay` bytes, what one way of such a cache holds at least, have the same places there.
bool few_compete(int64_t length, int64_t stride) {
  constexpr int64_t kWay = 65536, kShare = 2;  // as many of k as of v, of dk and dv
  const int64_t places = kWay / std::gcd(kWay, stride * static_cast<int64_t>(sizeof(float)));
  return length <= kShare * places;
}

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
  s.in_place = s.lanes == s.head && view.read(0).dtype == Dtype::f32 && few_compete(s.length, s.stride);
  const int64_t row = view.reads() == 1 ? s.stride + s.width : 2 * (s.stride + s.width);  // of all tensors
  s.samples_ahead = 4 * s.length * row * dtype_bytes(view.read(0).dtype) <= second_level_cache();
  return s;
}

// Elements from the rows of a head to those of the next one: q's, k's and v's, and in tensors as wide as out; 0: none.
struct Next {
  int64_t q = 0, kv = 0, narrow = 0;
  bool of_heads, of_samples;  // what is asked for beside a head: parts of the next one's rows, whole rows of samples
  Next(const Sizes& s, int64_t sample, int64_t h, bool first_sample = true)
      : of_heads(first_sample || !s.samples_ahead), of_samples(s.samples_ahead && sample + 1 < s.batch) {
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

// A strip's share of the next sample's rows, which are asked for in whole, one behind the other, as a CPU then fetches
// more of them by itself.
struct ShareOfNext {
  int64_t row, rows;  // from the sample's first one on
  ShareOfNext(const Sizes& s, int64_t h, int64_t first) {
    const int64_t strips = (s.length + kStrip - 1) / kStrip, all = s.heads * strips,
                  strip = h * strips + first / kStrip;
    row = s.length + s.length * strip / all;
    rows = s.length + s.length * (strip + 1) / all - row;
  }
  template <class T>
  void ask(const T* sample, int64_t stride, Prefetcher& ahead) const {
    ahead.add(sample + row * stride, stride, rows, stride);
  }
};

int64_t forward_floats(const Sizes& s) {  // per thread: k, v, and a strip's q, scores, result
  return 2 * s.length * s.lanes + kStrip * (s.head + s.length + s.lanes);
}

// Rows of a head in place, or packed to `room`.
template <class T>
FloatRows rows_of(const Sizes& s, const T* from, int64_t stride, int64_t rows, float* room) {
  if constexpr (std::is_same_v<T, float>)
    if (s.in_place) return {from, stride};
  pack_rows(from, stride, room, rows, s.head, s.lanes);
  return {room, s.lanes};
}

// Where sums of a head's rows are made: in place, or in `room`, from which unpack() then takes them.
template <class T>
struct Made {
  float* to;
  int64_t stride;
  Made(const Sizes& s, T* out, int64_t out_stride, float* room)
      : to(room), stride(s.lanes), out_(out), of_out_(out_stride) {
    if constexpr (std::is_same_v<T, float>)
      if (s.in_place) to = out, stride = out_stride;
  }
  void unpack(const Sizes& s, int64_t rows) const {
    if (!s.in_place) unpack_rows(to, stride, out_, of_out_, rows, s.head);
  }

 private:
  T* out_;
  int64_t of_out_;
};

// Keys, or values, as scores take them, and a strip of queries, or of dout, beside them. Numbers that are not pairs are
// multiplied by `factor` first.
template <class T>
FloatRows scored_rows(const Sizes& s, const T* from, int64_t stride, const FloatRows& otherwise) {
  if constexpr (std::is_same_v<T, bf16>)
    if (s.pairs) return pairs_of(from, stride);
  return otherwise;
}
template <class T>
void pack_strip(const Sizes& s, const T* from, int64_t stride, float* to, int64_t rows, float factor) {
  if constexpr (std::is_same_v<T, bf16>)
    if (s.pairs) return pack_pairs(from, stride, to, rows, s.head);
  pack_lanes(from, stride, to, rows, s.head, factor);
}
void score(const Sizes& s, const Strip& strip, const FloatRows& k, const float* q, float* scores, int64_t ld,
           Prefetcher& ahead) {
  s.pairs ? strip.score_pairs(k, s.head, q, scores, ld, ahead) : strip.score(k, s.head, q, scores, ld, ahead);
}

// Head h of one sample; qkv, out and lse are the sample's.
template <class T>
void forward_head(const Sizes& s, int64_t h, const Next& next, const T* qkv, T* out, float* lse, float* scratch) {
  const int64_t stride = s.stride, shared = h * s.kv_heads / s.heads * s.head;
  const T *own = qkv + h * s.head, *k_rows = qkv + s.k + shared, *v_rows = qkv + s.v + shared;
  out += h * s.head;
  lse += h * s.length;
  float *q = scratch, *scores = q + kStrip * s.head, *room = scores + kStrip * s.length;
  float strip_lse[kStrip], inverse[kStrip];
  float* const k_room = room + kStrip * s.lanes;
  const FloatRows k = s.pairs ? scored_rows(s, k_rows, stride, {}) : rows_of(s, k_rows, stride, s.length, k_room);
  const FloatRows v = rows_of(s, v_rows, stride, s.length, k_room + s.length * s.lanes);
  const float in_powers = s.scale * kLog2E;
  Prefetcher ahead;
  for (int64_t first = 0; first < s.length; first += kStrip) {
    const int64_t rows = s.strip_rows(first);
    const Strip strip(s.sight(first), rows);
    if (next.of_heads) {
      if (next.q != 0) ahead.add(own + first * stride + next.q, stride, rows, s.head);
      if (next.kv != 0) {
        ahead.add(k_rows + first * stride + next.kv, stride, rows, s.head);
        ahead.add(v_rows + first * stride + next.kv, stride, rows, s.head);
      }
      if (next.narrow != 0) ahead.add(out + first * s.width + next.narrow, s.width, rows, s.head);
    }
    if (next.of_samples) {
      const ShareOfNext share(s, h, first);
      share.ask(qkv, stride, ahead);
      share.ask(out - h * s.head, s.width, ahead);
    }
    const Made<T> result(s, out + first * s.width, s.width, room);
    pack_strip(s, own + first * stride, stride, q, rows, in_powers);
    score(s, strip, k, q, scores, kStrip, ahead);
    softmax_lanes(scores, kStrip, strip, s.pairs ? in_powers : 1.0f, strip_lse, inverse);
    strip.gather(scores, kStrip, v, s.lanes, inverse, result.to, result.stride, ahead);
    result.unpack(s, rows);
    std::copy(strip_lse, strip_lse + rows, lse + first);
  }
}

// Heads from `begin` to `end`, of all samples, of bf16 on squares of products.
void forward_in_bf16(const Sizes& s, int64_t begin, int64_t end, const bf16* qkv, bf16* out, float* lse,
                     float* scratch) {
  const auto sample = [&](int64_t i) { return qkv + i / s.heads * s.length * s.stride; };
  const auto shared = [&](int64_t i) { return i % s.heads * s.kv_heads / s.heads * s.head; };
  const auto head_of = [&](int64_t i) -> Bf16Forward::Head {
    return {{sample(i) + i % s.heads * s.head, s.stride},
            {sample(i) + s.k + shared(i), s.stride},
            {sample(i) + s.v + shared(i), s.stride}};
  };
  Bf16Forward heads({s.length, s.length, s.head, s.sight(0), s.scale}, begin, end, head_of, scratch);
  Prefetcher ahead;
  for (int64_t i = begin; i < end; ++i) {
    const auto to = [&](int64_t head) { return out + head / s.heads * s.length * s.width + head % s.heads * s.head; };
    for (int64_t first = 0; first < s.length; first += kStrip) {
      const int64_t rows = s.strip_rows(first);
      if (i + 1 < end) {
        const Bf16Forward::Head next = head_of(i + 1);
        for (const HeadRows& part : {next.k, next.q, next.v})
          if (part.data == next.q.data || shared(i + 1) != shared(i))
            ahead.add(part.from(first).data, s.stride, rows, s.head);
        ahead.add(to(i + 1) + first * s.width, s.width, rows, s.head);
      }
      const auto [result, inverse, strip_lse] = heads.next(ahead);
      round_rows(result, heads.lanes(), inverse, to(i) + first * s.width, s.width, rows, s.head);
      std::copy(strip_lse, strip_lse + rows, lse + i * s.length + first);
    }
  }
}

// Queries at a time, a multiple of kStrip: as many as 64 KiB of scores have room for, if those of a strip need no more.
int64_t block_rows(const Sizes& s) {
  constexpr int64_t kScores = 16384;
  const int64_t most = std::max(kStrip, kScores / round_up(s.length, kStrip) / kStrip * kStrip);
  return std::min(most, round_up(s.length, kStrip));
}

// Per thread: k, v, dk, dv, a block's q, dout, P and dS, and a strip's q and dout with queries side by side, and dq.
int64_t backward_floats(const Sizes& s) {
  return 4 * s.length * s.lanes + 2 * block_rows(s) * (s.lanes + s.length) + kStrip * (2 * s.head + s.lanes);
}

// A head of keys and values of one sample, with the heads of queries that share it.
template <class T>
void backward_head(const Sizes& s, int64_t shared, int64_t sample, bool first_sample, const T* qkv, const T* out,
                   const T* dout, const float* lse, T* dqkv, float* scratch) {
  const int64_t stride = s.stride, k_at = s.k + shared * s.head, v_at = s.v + shared * s.head;
  const int64_t head_size = s.length * s.lanes, ld = block_rows(s);
  const auto take = [&](int64_t floats) { return scratch += floats, scratch - floats; };
  float *p = take(ld * s.length), *ds = take(ld * s.length), *q_lanes = take(kStrip * s.head);
  float *go_lanes = take(kStrip * s.head), *dq_room = take(kStrip * s.lanes);
  float *q_room = take(ld * s.lanes), *go_room = take(ld * s.lanes), *k_room = take(head_size),
        *v_room = take(head_size);
  float *dk_room = take(head_size), *dv_room = take(head_size), dots[kStrip] = {}, shift[kStrip] = {};
  const FloatRows k = rows_of(s, qkv + k_at, stride, s.length, k_room);
  const FloatRows k_scored = scored_rows(s, qkv + k_at, stride, k);
  const FloatRows v_scored =
      s.pairs ? scored_rows(s, qkv + v_at, stride, {}) : rows_of(s, qkv + v_at, stride, s.length, v_room);
  const float in_powers = s.scale * kLog2E, factor = s.pairs ? in_powers : 1.0f, scale = s.pairs ? s.scale : 1.0f;
  const Made<T> dk(s, dqkv + k_at, stride, dk_room), dv(s, dqkv + v_at, stride, dv_room);
  const int64_t group = s.heads / s.kv_heads;
  int64_t added = 0;  // keys to whose gradients something was added
  Prefetcher ahead;
  for (int64_t h = shared * group; h < (shared + 1) * group; ++h) {
    const int64_t narrow = h * s.head;
    const Next next(s, sample, h, first_sample);
    for (int64_t begin = 0; begin < s.length; begin += ld) {
      const int64_t queries = std::min(ld, s.length - begin);
      const Strip block(s.sight(begin), queries);
      const FloatRows q = rows_of(s, qkv + begin * stride + narrow, stride, queries, q_room);
      const FloatRows go = rows_of(s, dout + begin * s.width + narrow, s.width, queries, go_room);
      for (int64_t first = begin; first < begin + queries; first += kStrip) {
        const int64_t rows = s.strip_rows(first), at = first * s.width + narrow, wide = first * stride;
        const Strip strip(s.sight(first), rows);
        if (next.of_heads) {
          for (const int64_t made : {narrow, k_at, v_at}) ahead.add(dqkv + wide + made, stride, rows, s.head);
          if (next.q != 0) ahead.add(qkv + wide + narrow + next.q, stride, rows, s.head);
          if (next.kv != 0) {
            ahead.add(qkv + wide + k_at + next.kv, stride, rows, s.head);
            ahead.add(qkv + wide + v_at + next.kv, stride, rows, s.head);
          }
          if (next.narrow != 0) {
            ahead.add(out + at + next.narrow, s.width, rows, s.head);
            ahead.add(dout + at + next.narrow, s.width, rows, s.head);
          }
        }
        if (next.of_samples) {
          const ShareOfNext share(s, h, first);
          share.ask(qkv, stride, ahead);
          share.ask(dqkv, stride, ahead);
          share.ask(out, s.width, ahead);
          share.ask(dout, s.width, ahead);
        }
        for (int64_t r = 0; r < rows; ++r) shift[r] = lse[h * s.length + first + r] * kLog2E;
        pack_strip(s, qkv + wide + narrow, stride, q_lanes, rows, in_powers);
        pack_strip(s, dout + at, s.width, go_lanes, rows, s.scale);
        row_dots(out + at, dout + at, s.width, rows, s.head, s.scale, dots);
        float *p_here = p + (first - begin), *ds_here = ds + (first - begin);
        score(s, strip, k_scored, q_lanes, p_here, ld, ahead);
        score(s, strip, v_scored, go_lanes, ds_here, ld, ahead);
        score_gradients(p_here, ds_here, ld, strip, factor, scale, shift, dots);
        const Made<T> dq(s, dqkv + wide + narrow, stride, dq_room);
        strip.gather(ds_here, ld, k, s.lanes, nullptr, dq.to, dq.stride, ahead);
        dq.unpack(s, rows);
      }
      block.scatter(p, ld, go, s.lanes, dv.to, dv.stride, added, ahead);
      block.scatter(ds, ld, q, s.lanes, dk.to, dk.stride, added, ahead);
      added = std::max(added, block.keys);
    }
  }
  dk.unpack(s, s.length);
  dv.unpack(s, s.length);
}

void backward_head_in_bf16(const Sizes& s, int64_t shared, int64_t sample, bool /*first_sample*/, const bf16* qkv,
                           const bf16* out, const bf16* dout, const float* lse, bf16* dqkv, float* scratch) {
  const int64_t stride = s.stride, k_at = s.k + shared * s.head, v_at = s.v + shared * s.head;
  Bf16Backward head({qkv + k_at, stride}, {qkv + v_at, stride}, s.length, s.length, s.head, scratch);
  const int64_t group = s.heads / s.kv_heads;
  Prefetcher ahead;
  for (int64_t h = shared * group; h < (shared + 1) * group; ++h) {
    for (int64_t first = 0; first < s.length; first += Bf16Backward::kQueries) {
      const int64_t rows = std::min(Bf16Backward::kQueries, s.length - first), at = first * s.width + h * s.head;
      const Next next(s, sample, h);
      const int64_t wide = first * stride;
      for (const int64_t made : {h * s.head, k_at, v_at}) ahead.add(dqkv + wide + made, stride, rows, s.head);
      if (next.q != 0) {
        ahead.add(qkv + wide + h * s.head + next.q, stride, rows, s.head);
        ahead.add(out + at + next.narrow, s.width, rows, s.head);
        ahead.add(dout + at + next.narrow, s.width, rows, s.head);
      }
      if (next.kv != 0)
        for (const int64_t which : {k_at, v_at}) ahead.add(qkv + wide + which + next.kv, stride, rows, s.head);
      head.queries({qkv + first * stride + h * s.head, stride}, {out + at, s.width}, {dout + at, s.width}, rows,
                   s.sight(first), s.scale, lse + h * s.length + first, ahead);
      for (int64_t r = 0; r < rows; r += kStrip)
        round_rows(head.dq(r / kStrip), head.lanes(), s.scale, dqkv + (first + r) * stride + h * s.head, stride,
                   std::min(kStrip, rows - r), s.head);
    }
  }
  head.finish();
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

// Not asked for where a program is compiled, as it measures.
template <class T>
bool takes_pairs(const Sizes& s) {
  return kVectorAsm && std::is_same_v<T, bf16> && s.head % 2 == 0 && !has_amx() && multiplies_pairs();
}

template <class T>
std::unique_ptr<Kernel> forward_kernel(const OpView& view) {
  Sizes s = sizes_of(view);
  s.pairs = takes_pairs<T>(s);
  view.expect_count(view.write(0), s.batch * s.length * s.width);
  view.expect_count(view.write(1), s.batch * s.heads * s.length);
  return kernel_of([s, qkv = view.in<T>(0), out = view.out<T>(0), lse = view.out<float>(1), threads = view.threads(),
                    share = scratch_bytes<true>(view) / view.threads(),
                    scratch = view.scratch(scratch_bytes<true>(view))] {
    const int64_t heads = s.batch * s.heads;
    const auto scratch_of = [&](int64_t thread) { return reinterpret_cast<float*>(scratch.data + thread * share); };
    if constexpr (std::is_same_v<T, bf16>) {
      if (has_amx()) {
        parallel_for(threads, threads, [&](int64_t i, int thread) {
          forward_in_bf16(s, heads * i / threads, heads * (i + 1) / threads, qkv, out, lse, scratch_of(thread));
        });
        return;
      }
    }
    parallel_for(threads, heads, [&](int64_t i, int thread) {
      const int64_t b = i / s.heads, h = i % s.heads;
      const bool first_sample = b == heads * thread / threads / s.heads;  // of the thread
      forward_head<T>(s, h, Next(s, b, h, first_sample), qkv + b * s.length * s.stride, out + b * s.length * s.width,
                      lse + b * s.heads * s.length, scratch_of(thread));
    });
  });
}

template <class T>
std::unique_ptr<Kernel> backward_kernel(const OpView& view) {
  Sizes s = sizes_of(view);
  s.pairs = takes_pairs<T>(s);
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
          if (has_amx()) return backward_head_in_bf16;
        return backward_head<T>;
      }();
      const bool first_sample = b == s.batch * s.kv_heads * thread / threads / s.kv_heads;  // of the thread
      head(s, i % s.kv_heads, b, first_sample, qkv + wide, out + narrow, dout + narrow, lse + b * s.heads * s.length,
           dqkv + wide, reinterpret_cast<float*>(scratch.data + thread * share));
    });
  });
}

}  // namespace

const Family attention_kernels = {
    {"attention", PRUN_FLOAT_MAKER(read(0), forward_kernel<T>(view)), Accepts::floats, scratch_bytes<true>},
    {"attention_grad", PRUN_FLOAT_MAKER(read(0), backward_kernel<T>(view)), Accepts::floats, scratch_bytes<false>}};

}  // namespace prun::cpu
