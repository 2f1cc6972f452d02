// One hop of ring attention and of its gradient (Liu et al., "Ring Attention with Blockwise Transformers", 2023): the
// rank's queries with the keys of the rank `hop` places before it, in the query blocks of attention.cc. Outputs are
// merged with those of earlier hops by their log-sum-exp in f32.
//
// Surprising fact: with any chunks, a query attends to a prefix of a hop's keys, because keys are stored in the order
// of their positions. So a chunk of queries has one Mask.
#include <cstring>

#include "kernels/cpu/attention/heads.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace prun::cpu {
namespace {

// A chunk of queries: rows [begin, end) of the rank's tokens.
struct Queries {
  int64_t begin, end;
  Mask mask;  // mask of the first row; `attended` = 0: no key of this hop
};

// Returns the number of a chunk in the whole sample: r for the rank's first, 2·ranks-1-r for its second.
int64_t number(const Share& share, int64_t chunk) { return chunk == 0 ? share.index : 2 * share.of - 1 - share.index; }

std::vector<Queries> chunks_of(const OpView& view, int64_t length) {
  const int64_t count = view.attrs().integer("chunks", 1), size = length / count;
  const bool causal = view.attrs().integer("causal") != 0;
  const Share queries = view.share("tokens_axis");
  const int64_t hop = view.attrs().integer("hop") % queries.of;
  const Share keys{(queries.index - hop + queries.of) % queries.of, queries.of};
  std::vector<Queries> chunks;
  for (int64_t i = 0; i < count; ++i) {
    Queries q{i * size, (i + 1) * size, {0, 0}};
    for (int64_t j = 0; j < count; ++j) {
      if (!causal || number(keys, j) < number(queries, i)) q.mask.attended += size;
      if (causal && number(keys, j) == number(queries, i)) q.mask.attended += 1, q.mask.step = 1;
    }
    chunks.push_back(q);
  }
  return chunks;
}

// kv is [batch, length, kv_width()]: the keys of all heads, then their values.
struct Sizes : Heads {
  std::vector<Queries> chunks;

  explicit Sizes(const OpView& view) : Heads(view), chunks(chunks_of(view, length)) {
    view.expect_count(view.read(1), batch * length * kv_width());
  }
  // Returns the number of keys that any query attends to.
  int64_t reach() const {
    int64_t most = 0;
    for (const Queries& q : chunks) most = std::max(most, q.mask.keys(q.end - q.begin));
    return most;
  }
};

// Calls f(mask, first, rows) for each query block.
template <class F>
void each_block(const Sizes& s, const F& f) {
  for (const Queries& q : s.chunks)
    for (int64_t first = q.begin; first < q.end; first += kQueryBlock)
      f(q.mask.from(first - q.begin), first, std::min(kQueryBlock, q.end - first));
}

// The rows of one head in an accumulated tensor [length, stride]. `before` is the result of the earlier hops, null on
// the first; it may be the same memory as `now`.
struct Running {
  const float* before;
  float* now;
  int64_t stride;
};

// Copies the result of the earlier hops, or zeros.
void carry_over(const Running& x, int64_t first, int64_t rows, int64_t head) {
  for (int64_t r = first; r < first + rows; ++r) {
    float* to = x.now + r * x.stride;
    if (x.before == nullptr)
      std::fill(to, to + head, 0.0f);
    else if (x.before != x.now)
      std::memcpy(to, x.before + r * x.stride, head * sizeof(float));
  }
}

// Merges two outputs and their log-sum-exps into those of both sets of keys.
PRUN_CLONES void merge_rows(const float* block, int64_t lanes, const float* block_lse, const float* out_before,
                            const float* lse_before, float* out, float* lse, int64_t stride, int64_t rows,
                            int64_t head) {
  for (int64_t r = 0; r < rows; ++r) {
    const float a = lse_before[r], b = block_lse[r], top = a > b ? a : b;
    const float old_share = exp_f32(a - top), new_share = exp_f32(b - top), sum = old_share + new_share;
    const float keep = old_share / sum, add = new_share / sum;
    lse[r] = top + std::log(sum);
#pragma omp simd
    for (int64_t i = 0; i < head; ++i)
      out[r * stride + i] = keep * out_before[r * stride + i] + add * block[r * lanes + i];
  }
}

// Computes to += from.
PRUN_CLONES void add_rows(const float* from, int64_t lanes, float* to, int64_t stride, int64_t rows, int64_t head) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < head; ++i) to[r * stride + i] += from[r * lanes + i];
  }
}

// Computes a head of one sample. `qkv` and `kv` begin with the head's queries and keys.
template <class T>
void forward_head(const Sizes& s, const T* qkv, const T* kv, const Running& out, const Running& lse, float* scratch) {
  float *k = scratch, *v = k + s.length * s.lanes, *queries = v + s.length * s.lanes;
  float *scores = queries + kQueryBlock * s.head, *result = scores + kQueryBlock * s.length;
  float block_lse[kQueryBlock], inverse[kQueryBlock];
  pack_rows(kv, s.kv_width(), k, s.reach(), s.head, s.lanes);
  pack_rows(kv + s.kv_width() / 2, s.kv_width(), v, s.reach(), s.head, s.lanes);
  const HeadRows<T> q{qkv, s.stride};
  Prefetcher none;
  each_block(s, [&](const Mask& mask, int64_t first, int64_t rows) {
    if (mask.attended == 0) {
      carry_over(out, first, rows, s.head);
      if (lse.before != lse.now) std::copy(lse.before + first, lse.before + first + rows, lse.now + first);
      return;
    }
    const QueryBlock block(mask, rows);
    float* to = out.now + first * out.stride;
    block_probabilities({s.head, s.scale}, block, q.from(first), {k, s.lanes}, queries, scores, block_lse, inverse,
                        none);
    block.reduce_over_keys(scores, kQueryBlock, {v, s.lanes}, s.lanes, inverse, result, s.lanes, none);
    if (out.before != nullptr)
      return merge_rows(result, s.lanes, block_lse, out.before + first * out.stride, lse.before + first, to,
                        lse.now + first, out.stride, rows, s.head);
    std::copy(block_lse, block_lse + rows, lse.now + first);
    unpack_rows(result, s.lanes, to, out.stride, rows, s.head);
  });
}

// Returns floats per thread: k, v, dk, dv, and a block's q and dout, as rows and transposed, dq, P, dS.
int64_t backward_floats(const Heads& s) {
  return 4 * s.length * s.lanes + kQueryBlock * (3 * s.lanes + 2 * s.head + 2 * s.length);
}

// Computes the gradients of one head of keys and values with all heads of queries that share it, so that no two threads
// add to the same dk.
template <class T>
void backward_group(const Sizes& s, const T* qkv, const T* kv, const T* out, const T* dout, const float* lse,
                    const Running& dq, float* dkv, float* scratch) {
  const int64_t tile = s.length * s.lanes, size = kQueryBlock * s.lanes, shared = s.kv_width();
  float *k = scratch, *v = k + tile, *dk = v + tile, *dv = dk + tile, *q_rows = dv + tile, *go_rows = q_rows + size;
  float *dq_block = go_rows + size, *queries = dq_block + size, *gradients = queries + kQueryBlock * s.head;
  float *p = gradients + kQueryBlock * s.head, *ds = p + kQueryBlock * s.length;
  std::memset(dk, 0, 2 * tile * sizeof(float));
  pack_rows(kv, shared, k, s.reach(), s.head, s.lanes);
  pack_rows(kv + shared / 2, shared, v, s.reach(), s.head, s.lanes);
  Prefetcher none;
  for (int64_t h = 0; h < s.group(); ++h) {
    const int64_t column = h * s.head;
    const HeadRows<T> q{qkv + column, s.stride}, o{out + column, s.width}, go{dout + column, s.width};
    const Running dq_of_head{dq.before == nullptr ? nullptr : dq.before + column, dq.now + column, dq.stride};
    each_block(s, [&](const Mask& mask, int64_t first, int64_t rows) {
      carry_over(dq_of_head, first, rows, s.head);
      if (mask.attended == 0) return;
      const QueryBlock block(mask, rows);
      pack_rows(q.from(first).data, s.stride, q_rows, rows, s.head, s.lanes);
      pack_rows(go.from(first).data, s.width, go_rows, rows, s.head, s.lanes);
      block_score_gradients({s.head, s.scale}, block, q.from(first), o.from(first), go.from(first),
                            lse + h * s.length + first, {k, s.lanes}, {v, s.lanes}, queries, gradients, p, ds,
                            kQueryBlock, none);
      block.reduce_over_queries(p, kQueryBlock, {go_rows, s.lanes}, s.lanes, dv, s.lanes, block.keys, none);
      block.reduce_over_queries(ds, kQueryBlock, {q_rows, s.lanes}, s.lanes, dk, s.lanes, block.keys, none);
      block.reduce_over_keys(ds, kQueryBlock, {k, s.lanes}, s.lanes, nullptr, dq_block, s.lanes, none);
      add_rows(dq_block, s.lanes, dq_of_head.now + first * dq.stride, dq.stride, rows, s.head);
    });
  }
  unpack_rows(dk, s.lanes, dkv, shared, s.length, s.head);
  unpack_rows(dv, s.lanes, dkv + shared / 2, shared, s.length, s.head);
}

template <int64_t (*floats)(const Heads&)>
int64_t workspace(const OpView& view) {
  return view.threads() * ThreadScratch::bytes_of(floats(Heads(view)));
}

const float* running(const OpView& view, size_t read) { return view.reads() > read ? view.in<float>(read) : nullptr; }
const float* at(const float* data, int64_t i) { return data == nullptr ? nullptr : data + i; }

template <class T>
std::unique_ptr<Kernel> forward_kernel(const OpView& view) {
  const Sizes s(view);
  PRUN_CHECK(view.reads() == 4 || view.attrs().integer("hop") == 0, "hop 0 comes first");
  view.expect_count(view.write(0), s.batch * s.length * s.width);
  view.expect_count(view.write(1), s.batch * s.heads * s.length);
  return kernel_of([s, qkv = view.in<T>(0), kv = view.in<T>(1), out_before = running(view, 2),
                    lse_before = running(view, 3), out = view.out<float>(0), lse = view.out<float>(1),
                    threads = view.threads(), scratch = ThreadScratch(view, forward_floats(s))] {
    parallel_for(threads, s.batch * s.heads, [&](int64_t i, int thread) {
      const int64_t b = i / s.heads, h = i % s.heads, row = b * s.length, to = row * s.width + s.q(h);
      forward_head(s, qkv + row * s.stride + s.q(h), kv + row * s.kv_width() + h / s.group() * s.head,
                   {at(out_before, to), out + to, s.width}, {at(lse_before, i * s.length), lse + i * s.length, 1},
                   scratch.of(thread));
    });
  });
}

template <class T>
std::unique_ptr<Kernel> backward_kernel(const OpView& view) {
  const Sizes s(view);
  for (size_t i : {2, 3}) view.expect_count(view.read(i), s.batch * s.length * s.width);
  view.expect_count(view.read(4), s.batch * s.heads * s.length);
  view.expect_count(view.write(0), s.batch * s.length * s.width);
  view.expect_count(view.write(1), s.batch * s.length * s.kv_width());
  return kernel_of([s, qkv = view.in<T>(0), kv = view.in<T>(1), out = view.in<T>(2), dout = view.in<T>(3),
                    lse = view.in<float>(4), dq_before = running(view, 5), dq = view.out<float>(0),
                    dkv = view.out<float>(1), threads = view.threads(),
                    scratch = ThreadScratch(view, backward_floats(s))] {
    parallel_for(threads, s.batch * s.kv_heads, [&](int64_t i, int thread) {
      const int64_t b = i / s.kv_heads, kv_head = i % s.kv_heads, row = b * s.length, h = kv_head * s.group();
      const int64_t to = row * s.width + s.q(h), shared = row * s.kv_width() + kv_head * s.head;
      backward_group(s, qkv + row * s.stride + s.q(h), kv + shared, out + to, dout + to,
                     lse + (b * s.heads + h) * s.length, {at(dq_before, to), dq + to, s.width}, dkv + shared,
                     scratch.of(thread));
    });
  });
}

}  // namespace

const Family attention_block_kernels = {
    {"attention_block", PRUN_FLOAT_MAKER(read(0), forward_kernel<T>(view)), Accepts::floats, workspace<forward_floats>},
    {"attention_block_grad", PRUN_FLOAT_MAKER(read(0), backward_kernel<T>(view)), Accepts::floats,
     workspace<backward_floats>},
};

}  // namespace prun::cpu
