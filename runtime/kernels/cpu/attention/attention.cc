// Multi-head attention and its gradient (Dao et al., "FlashAttention", 2022) for blocks of queries: the scores of a
// block fit in scratch, and no T x T matrix is stored.
//
// The implementation of a head (implementation_of):
//
//      dtype   head   --kernels              implementation                                   source
//      f32     any    all                    rows: GEMMs in f32                               query_block.h
//      bf16    any    any, avx2, avx512,     rows: bf16 is converted to f32 rows              query_block.h
//                     avx512+bf16
//      bf16    even   avx512+pairs           pairs: scores are dot products of bf16 pairs,    query_block.h
//                                            the other GEMMs f32
//      bf16    odd    avx512+pairs           rows
//      bf16    any    avx512+tiles           tiles: GEMMs on AMX                              attention_tiles.h
//
// ring_attention.cc has attention over several ranks, decode.cc that of a token with its cache.
//
// Surprising fact: f32 heads are read and written in place unless their rows compete for a few cache sets. Other heads
// are copied to f32 rows, which costs 1/T of the GEMMs.
#include <numeric>
#include <type_traits>

#include "base/vector_asm.h"
#include "kernels/cpu/attention/attention_tiles.h"
#include "kernels/cpu/attention/head_prefetch.h"
#include "kernels/cpu/attention/heads.h"
#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/parallel.h"

namespace prun::cpu {
namespace {

enum class Implementation : uint8_t { rows, pairs, tiles };

// Must not run while a program is compiled, because kernels() may measure.
template <class T>
Implementation implementation_of(const Heads& s) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (has_amx()) return Implementation::tiles;
    if (kVectorAsm && s.head % 2 == 0 && has_pair_gemm()) return Implementation::pairs;
  }
  return Implementation::rows;
}

// Returns whether `length` rows of f32, `stride` elements apart, fit into a second-level cache together. Rows whose
// distance is a multiple of `kWay` bytes, the smallest way of such a cache, share a set.
bool few_compete(int64_t length, int64_t stride) {
  constexpr int64_t kWay = 65536, kShare = 2;  // as many rows of k as of v, of dk as of dv
  const int64_t sets = kWay / std::gcd(kWay, stride * static_cast<int64_t>(sizeof(float)));
  return length <= kShare * sets;
}

struct Sizes : Heads {
  bool causal;
  bool in_place;       // f32 heads are read and written where they are stored
  bool whole_samples;  // for HeadPrefetch: two samples take at most half of a second-level cache

  explicit Sizes(const OpView& view) : Heads(view) {
    causal = view.attrs().integer("causal", 0) != 0;
    in_place = lanes == head && view.read(0).dtype == Dtype::f32 && few_compete(length, stride);
    const int64_t row = view.reads() == 1 ? stride + width : 2 * (stride + width);  // elements per row of all tensors
    whole_samples = 4 * length * row * dtype_bytes(view.read(0).dtype) <= second_level_cache();
  }
  Mask mask(int64_t first) const { return causal ? Mask{first + 1, 1} : Mask{length, 0}; }
};

// Returns the rows of a head in place, or packed to `scratch`.
template <class T>
FloatRows rows_of(const Sizes& s, const HeadRows<T>& from, int64_t rows, float* scratch) {
  if constexpr (std::is_same_v<T, float>)
    if (s.in_place) return from;
  pack_rows(from.data, from.stride, scratch, rows, s.head, s.lanes);
  return {scratch, s.lanes};
}

// The destination of f32 rows of a head: in place, or scratch that unpack() copies and rounds.
template <class T>
struct Destination {
  float* to;
  int64_t stride;
  Destination(const Sizes& s, T* out, int64_t out_stride, float* scratch)
      : to(scratch), stride(s.lanes), out_(out), out_stride_(out_stride) {
    if constexpr (std::is_same_v<T, float>)
      if (s.in_place) to = out, stride = out_stride;
  }
  void unpack(const Sizes& s, int64_t rows) const {
    if (!s.in_place) unpack_rows(to, stride, out_, out_stride_, rows, s.head);
  }

 private:
  T* out_;
  int64_t out_stride_;
};

// Computes head h of one sample; qkv, out and lse are the sample's.
template <class T>
void forward_head(const Sizes& s, bool pairs, int64_t h, const HeadPrefetch& next, const T* qkv, T* out, float* lse,
                  float* scratch) {
  Carve carve{scratch};
  float *queries = carve(kQueryBlock * s.head), *scores = carve(kQueryBlock * s.length);
  float *result = carve(kQueryBlock * s.lanes), *packed_k = carve(s.length * s.lanes),
        *packed_v = carve(s.length * s.lanes);
  const HeadRows<T> q{qkv + s.q(h), s.stride}, k_rows{qkv + s.k(h), s.stride}, v_rows{qkv + s.v(h), s.stride};
  const ScoreKernel kernel{s.head, s.scale, pairs};
  const FloatRows k = kernel.operand(k_rows, pairs ? FloatRows{} : rows_of(s, k_rows, s.length, packed_k));
  const FloatRows v = rows_of(s, v_rows, s.length, packed_v);
  float block_lse[kQueryBlock], inverse[kQueryBlock];
  Prefetcher prefetch;
  for (int64_t first = 0; first < s.length; first += kQueryBlock) {
    const int64_t rows = s.block_rows(first);
    const QueryBlock block(s.mask(first), rows);
    next.forward(first, rows, qkv, out, prefetch);
    const Destination<T> o(s, out + first * s.width + s.q(h), s.width, result);
    block_probabilities(kernel, block, q.from(first), k, queries, scores, block_lse, inverse, prefetch);
    block.reduce_over_keys(scores, kQueryBlock, v, s.lanes, inverse, o.to, o.stride, prefetch);
    o.unpack(s, rows);
    std::copy(block_lse, block_lse + rows, lse + h * s.length + first);
  }
}

// Returns the number of queries whose P and dS are stored together: a multiple of kQueryBlock, at least one query
// block, and otherwise at most 64 KiB of scores.
int64_t backward_rows(const Heads& s) {
  constexpr int64_t kScores = 16384;
  const int64_t most = std::max(kQueryBlock, kScores / round_up(s.length, kQueryBlock) / kQueryBlock * kQueryBlock);
  return std::min(most, round_up(s.length, kQueryBlock));
}

// Returns floats per thread: k, v, dk, dv; P, dS, q and dout of backward_rows(); a query block's q and dout transposed,
// and its dq.
int64_t backward_floats(const Heads& s) {
  return 4 * s.length * s.lanes + 2 * backward_rows(s) * (s.lanes + s.length) + kQueryBlock * (2 * s.head + s.lanes);
}

// Computes the gradients of a head of keys and values of one sample, and of the heads of queries that share it. dq is
// complete with its query block; dk and dv accumulate over blocks of backward_rows() queries.
template <class T>
void backward_head(const Sizes& s, bool pairs, int64_t kv_head, int64_t sample, bool first_sample, const T* qkv,
                   const T* out, const T* dout, const float* lse, T* dqkv, float* scratch) {
  const int64_t head_size = s.length * s.lanes, ld = backward_rows(s), first_head = kv_head * s.group();
  Carve carve{scratch};
  float *p = carve(ld * s.length), *ds = carve(ld * s.length);
  float *queries = carve(kQueryBlock * s.head), *gradients = carve(kQueryBlock * s.head);
  float *dq_rows = carve(kQueryBlock * s.lanes), *packed_q = carve(ld * s.lanes), *packed_dout = carve(ld * s.lanes);
  float *packed_k = carve(head_size), *packed_v = carve(head_size), *dk_rows = carve(head_size),
        *dv_rows = carve(head_size);
  const HeadRows<T> k_rows{qkv + s.k(first_head), s.stride}, v_rows{qkv + s.v(first_head), s.stride};
  const ScoreKernel kernel{s.head, s.scale, pairs};
  const FloatRows k = rows_of(s, k_rows, s.length, packed_k);
  const FloatRows k_scored = kernel.operand(k_rows, k);
  const FloatRows v_scored = kernel.operand(v_rows, pairs ? FloatRows{} : rows_of(s, v_rows, s.length, packed_v));
  const Destination<T> dk(s, dqkv + s.k(first_head), s.stride, dk_rows),
      dv(s, dqkv + s.v(first_head), s.stride, dv_rows);
  int64_t added = 0;  // keys whose gradients have contributions
  Prefetcher prefetch;
  for (int64_t h = first_head; h < first_head + s.group(); ++h) {
    const HeadPrefetch next(s, sample, h, s.whole_samples, first_sample);
    const HeadRows<T> q{qkv + s.q(h), s.stride}, o{out + s.q(h), s.width}, go{dout + s.q(h), s.width};
    for (int64_t begin = 0; begin < s.length; begin += ld) {
      const int64_t many = std::min(ld, s.length - begin);
      const FloatRows q_block = rows_of(s, q.from(begin), many, packed_q);
      const FloatRows go_block = rows_of(s, go.from(begin), many, packed_dout);
      for (int64_t first = begin; first < begin + many; first += kQueryBlock) {
        const int64_t rows = s.block_rows(first);
        const QueryBlock block(s.mask(first), rows);
        next.backward(first, rows, qkv, out, dout, dqkv, prefetch);
        float *block_p = p + (first - begin), *block_ds = ds + (first - begin);
        block_score_gradients(kernel, block, q.from(first), o.from(first), go.from(first), lse + h * s.length + first,
                              k_scored, v_scored, queries, gradients, block_p, block_ds, ld, prefetch);
        const Destination<T> dq(s, dqkv + first * s.stride + s.q(h), s.stride, dq_rows);
        block.reduce_over_keys(block_ds, ld, k, s.lanes, nullptr, dq.to, dq.stride, prefetch);
        dq.unpack(s, rows);
      }
      const QueryBlock all(s.mask(begin), many);
      all.reduce_over_queries(p, ld, go_block, s.lanes, dv.to, dv.stride, added, prefetch);
      all.reduce_over_queries(ds, ld, q_block, s.lanes, dk.to, dk.stride, added, prefetch);
      added = std::max(added, all.keys);
    }
  }
  dk.unpack(s, s.length);
  dv.unpack(s, s.length);
}

// Prefetches the rows of the next head that correspond to the query block at `first`. `new_keys`: the next head has
// other keys than the current one.
void prefetch_next_head(const Sizes& s, int64_t first, const Bf16Forward::Head& next, bool new_keys,
                        const bf16* next_out, Prefetcher& prefetch) {
  const int64_t rows = s.block_rows(first);
  if (new_keys) prefetch.add(next.k.from(first).data, s.stride, rows, s.head);
  prefetch.add(next.q.from(first).data, s.stride, rows, s.head);
  if (new_keys) prefetch.add(next.v.from(first).data, s.stride, rows, s.head);
  prefetch.add(next_out + first * s.width, s.width, rows, s.head);
}

// Computes the heads [begin, end) of all samples on AMX.
void forward_in_tiles(const Sizes& s, int64_t begin, int64_t end, const bf16* qkv, bf16* out, float* lse,
                      float* scratch) {
  const auto head_of = [&](int64_t i) -> Bf16Forward::Head {
    const bf16* sample = qkv + i / s.heads * s.length * s.stride;
    const int64_t h = i % s.heads;
    return {{sample + s.q(h), s.stride}, {sample + s.k(h), s.stride}, {sample + s.v(h), s.stride}};
  };
  const auto out_of = [&](int64_t i) { return out + i / s.heads * s.length * s.width + s.q(i % s.heads); };
  Bf16Forward heads({s.length, s.length, s.head, s.mask(0), s.scale}, begin, end, head_of, scratch);
  Prefetcher prefetch;
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t first = 0; first < s.length; first += kQueryBlock) {
      if (i + 1 < end)
        prefetch_next_head(s, first, head_of(i + 1), s.k((i + 1) % s.heads) != s.k(i % s.heads), out_of(i + 1),
                           prefetch);
      const int64_t rows = s.block_rows(first);
      const auto [result, inverse, block_lse] = heads.next(prefetch);
      round_rows(result, heads.lanes(), inverse, out_of(i) + first * s.width, s.width, rows, s.head);
      std::copy(block_lse, block_lse + rows, lse + i * s.length + first);
    }
  }
}

void backward_in_tiles(const Sizes& s, int64_t kv_head, int64_t sample, const bf16* qkv, const bf16* out,
                       const bf16* dout, const float* lse, bf16* dqkv, float* scratch) {
  const int64_t first_head = kv_head * s.group(), k_at = s.k(first_head), v_at = s.v(first_head);
  Bf16Backward head({qkv + k_at, s.stride}, {qkv + v_at, s.stride}, s.length, s.length, s.head, scratch);
  Prefetcher prefetch;
  for (int64_t h = first_head; h < first_head + s.group(); ++h) {
    const HeadPrefetch next(s, sample, h);
    for (int64_t first = 0; first < s.length; first += Bf16Backward::kQueries) {
      const int64_t rows = std::min(Bf16Backward::kQueries, s.length - first), at = first * s.width + s.q(h);
      next.backward(first, rows, qkv, out, dout, dqkv, prefetch);
      head.queries({qkv + first * s.stride + s.q(h), s.stride}, {out + at, s.width}, {dout + at, s.width}, rows,
                   s.mask(first), s.scale, lse + h * s.length + first, prefetch);
      for (int64_t r = 0; r < rows; r += kQueryBlock)
        round_rows(head.dq(r / kQueryBlock), head.lanes(), s.scale, dqkv + (first + r) * s.stride + s.q(h), s.stride,
                   std::min(kQueryBlock, rows - r), s.head);
    }
  }
  head.finish();
  round_rows(head.dk(), head.lanes(), s.scale, dqkv + k_at, s.stride, s.length, s.head);
  round_rows(head.dv(), head.lanes(), 1.0f, dqkv + v_at, s.stride, s.length, s.head);
}

// Returns a thread's scratch: the same on every machine, so that a program's memory does not depend on where it was
// compiled.
template <bool kForward>
int64_t scratch_floats(const OpView& view) {
  const Heads s(view);
  const int64_t floats = kForward ? forward_floats(s) : backward_floats(s);
  if (view.read(0).dtype != Dtype::bf16) return floats;
  return std::max(floats,
                  kForward ? bf16_forward_floats(s.length, s.head) : bf16_backward_floats(s.length, s.length, s.head));
}
template <bool kForward>
int64_t workspace(const OpView& view) {
  return view.threads() * ThreadScratch::bytes_of(scratch_floats<kForward>(view));
}

template <class T>
std::unique_ptr<Kernel> forward_kernel(const OpView& view) {
  const Sizes s(view);
  view.expect_count(view.write(0), s.batch * s.length * s.width);
  view.expect_count(view.write(1), s.batch * s.heads * s.length);
  return kernel_of([s, implementation = implementation_of<T>(s), qkv = view.in<T>(0), out = view.out<T>(0),
                    lse = view.out<float>(1), threads = view.threads(),
                    scratch = ThreadScratch(view, scratch_floats<true>(view))] {
    const int64_t heads = s.batch * s.heads;
    if constexpr (std::is_same_v<T, bf16>) {
      if (implementation == Implementation::tiles)
        return parallel_for(threads, threads, [&](int64_t i, int thread) {
          forward_in_tiles(s, heads * i / threads, heads * (i + 1) / threads, qkv, out, lse, scratch.of(thread));
        });
    }
    parallel_for(threads, heads, [&](int64_t i, int thread) {
      const int64_t b = i / s.heads, h = i % s.heads;
      const bool first_sample = b == heads * thread / threads / s.heads;  // the thread's first sample
      forward_head<T>(s, implementation == Implementation::pairs, h,
                      HeadPrefetch(s, b, h, s.whole_samples, first_sample), qkv + b * s.length * s.stride,
                      out + b * s.length * s.width, lse + b * s.heads * s.length, scratch.of(thread));
    });
  });
}

template <class T>
std::unique_ptr<Kernel> backward_kernel(const OpView& view) {
  const Sizes s(view);
  for (size_t i : {1, 2}) view.expect_count(view.read(i), s.batch * s.length * s.width);
  view.expect_count(view.read(3), s.batch * s.heads * s.length);
  view.expect_count(view.write(0), s.batch * s.length * s.stride);
  return kernel_of([s, implementation = implementation_of<T>(s), qkv = view.in<T>(0), out = view.in<T>(1),
                    dout = view.in<T>(2), lse = view.in<float>(3), dqkv = view.out<T>(0), threads = view.threads(),
                    scratch = ThreadScratch(view, scratch_floats<false>(view))] {
    parallel_for(threads, s.batch * s.kv_heads, [&](int64_t i, int thread) {
      const int64_t b = i / s.kv_heads, wide = b * s.length * s.stride, narrow = b * s.length * s.width;
      const float* sample_lse = lse + b * s.heads * s.length;
      if constexpr (std::is_same_v<T, bf16>) {
        if (implementation == Implementation::tiles)
          return backward_in_tiles(s, i % s.kv_heads, b, qkv + wide, out + narrow, dout + narrow, sample_lse,
                                   dqkv + wide, scratch.of(thread));
      }
      const bool first_sample = b == s.batch * s.kv_heads * thread / threads / s.kv_heads;  // the thread's first sample
      backward_head<T>(s, implementation == Implementation::pairs, i % s.kv_heads, b, first_sample, qkv + wide,
                       out + narrow, dout + narrow, sample_lse, dqkv + wide, scratch.of(thread));
    });
  });
}

}  // namespace

const Family attention_kernels = {
    {"attention", PRUN_FLOAT_MAKER(read(0), forward_kernel<T>(view)), Accepts::floats, workspace<true>},
    {"attention_grad", PRUN_FLOAT_MAKER(read(0), backward_kernel<T>(view)), Accepts::floats, workspace<false>}};

}  // namespace prun::cpu
