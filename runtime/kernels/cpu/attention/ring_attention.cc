// One hop of ring attention and of its gradient: the rank's queries and the keys of the rank `hop` before it, in the
// strips of attention.cc, merged with what the hops before have given by log-sum-exp in f32.
//
// Surprising fact: whatever the chunks, a query sees a prefix of the keys that are here, since keys lie in the order of
// their positions; so a mask is one number for each chunk of queries and whether it grows by one a row.
#include <cmath>
#include <cstring>

#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/attention/accumulator_tile.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace prun::cpu {
namespace {

struct Queries {  // a chunk of them: [begin, end) of the rank's tokens
  int64_t begin, end;
  int64_t seen, more;  // keys that the first one sees, and how many more each next one
  Sight sight(int64_t first) const { return {seen + (first - begin) * more, more}; }  // of the strip at `first`
};

// qkv is [batch, length, wide = (heads + 2·kv_heads)·head], kv [batch, length, shared = 2·kv_heads·head].
struct Sizes {
  int64_t batch, length, heads, kv_heads, head, width, wide, shared;
  int64_t lanes;  // head padded to whole tiles
  float scale;
  std::vector<Queries> chunks;

  // Keys that any query sees.
  int64_t reach() const {
    int64_t most = 0;
    for (const Queries& q : chunks) most = std::max(most, q.sight(q.begin).keys(q.end - q.begin));
    return most;
  }
};

// The rank's chunks are number r and, of two, 2c-1-r of the whole sample's.
int64_t number(const Share& share, int64_t chunk) { return chunk == 0 ? share.index : 2 * share.of - 1 - share.index; }

std::vector<Queries> chunks_of(const OpView& view, int64_t length) {
  const int64_t count = view.attrs().integer("chunks", 1), size = length / count;
  const bool causal = view.attrs().integer("causal") != 0;
  const Share queries = view.share("tokens_axis");
  const int64_t hop = view.attrs().integer("hop") % queries.of;
  const Share keys{(queries.index - hop + queries.of) % queries.of, queries.of};
  std::vector<Queries> chunks;
  for (int64_t i = 0; i < count; ++i) {
    Queries q{i * size, (i + 1) * size, 0, 0};
    for (int64_t j = 0; j < count; ++j) {
      if (!causal || number(keys, j) < number(queries, i)) q.seen += size;
      if (causal && number(keys, j) == number(queries, i)) q.seen += 1, q.more = 1;
    }
    chunks.push_back(q);
  }
  return chunks;
}

Sizes sizes_of(const OpView& view) {
  const Tensor &qkv = view.read(0), &kv = view.read(1);
  PRUN_CHECK(qkv.shape.size() == 3, shape_text(qkv.shape));
  Sizes s;
  s.batch = qkv.shape[0];
  s.length = qkv.shape[1];
  s.wide = qkv.shape[2];
  s.heads = view.attrs().integer("heads", 1);
  s.kv_heads = view.attrs().integer("kv_heads", s.heads);
  PRUN_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.wide % (s.heads + 2 * s.kv_heads) == 0,
             shape_text(qkv.shape));
  s.head = s.wide / (s.heads + 2 * s.kv_heads);
  s.width = s.heads * s.head;
  s.shared = 2 * s.kv_heads * s.head;
  s.lanes = round_up(s.head, kTileColumns);
  s.scale = 1.0f / std::sqrt(static_cast<float>(s.head));
  s.chunks = chunks_of(view, s.length);
  view.expect_count(kv, s.batch * s.length * s.shared);
  return s;
}

// Calls f(chunk, first, rows) for each strip of query rows.
template <class F>
void each_strip(const Sizes& s, const F& f) {
  for (const Queries& q : s.chunks)
    for (int64_t first = q.begin; first < q.end; first += kStrip) f(q, first, std::min(kStrip, q.end - first));
}

// One head's rows of a tensor [length, stride], of which `head` columns belong to it. `before` is what the earlier hops
// have given, null on the first, and may be the same memory.
struct Running {
  const float* before;
  float* now;
  int64_t stride;
};

void keep_rows(const Running& x, int64_t first, int64_t rows, int64_t head) {
  for (int64_t r = first; r < first + rows; ++r) {
    float* to = x.now + r * x.stride;
    if (x.before == nullptr)
      std::fill(to, to + head, 0.0f);
    else if (x.before != x.now)
      std::memcpy(to, x.before + r * x.stride, head * sizeof(float));
  }
}

// Two softmax-weighted means and their log-sum-exps become those of both sets of keys.
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

// to += from.
PRUN_CLONES void add_rows(const float* from, int64_t lanes, float* to, int64_t stride, int64_t rows, int64_t head) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < head; ++i) to[r * stride + i] += from[r * lanes + i];
  }
}

int64_t forward_floats(const Sizes& s) {  // per thread: k, v, and a strip's q, scores, result
  return 2 * s.length * s.lanes + kStrip * (s.head + s.length + s.lanes);
}

// `kv` begins with the head's k, its v lies shared/2 later.
template <class T>
void forward_head(const Sizes& s, const T* qkv, const T* kv, const Running& out, const Running& lse, float* scratch) {
  float *k = scratch, *v = k + s.length * s.lanes, *q = v + s.length * s.lanes, *scores = q + kStrip * s.head;
  float *result = scores + kStrip * s.length, block_lse[kStrip], inverse[kStrip];
  pack_rows(kv, s.shared, k, s.reach(), s.head, s.lanes);
  pack_rows(kv + s.shared / 2, s.shared, v, s.reach(), s.head, s.lanes);
  Prefetcher none;
  each_strip(s, [&](const Queries& chunk, int64_t first, int64_t rows) {
    if (chunk.seen == 0) {
      keep_rows(out, first, rows, s.head);
      if (lse.before != lse.now) std::copy(lse.before + first, lse.before + first + rows, lse.now + first);
      return;
    }
    const Strip strip(chunk.sight(first), rows);
    const bool alone = out.before == nullptr;
    float* to = out.now + first * out.stride;
    pack_lanes(qkv + first * s.wide, s.wide, q, rows, s.head, s.scale * kLog2E);
    strip.score({k, s.lanes}, s.head, q, scores, kStrip, none);
    softmax_lanes(scores, kStrip, strip, 1.0f, block_lse, inverse);
    strip.gather(scores, kStrip, {v, s.lanes}, s.lanes, inverse, result, s.lanes, none);
    if (alone) std::copy(block_lse, block_lse + rows, lse.now + first);
    if (alone)
      unpack_rows(result, s.lanes, to, out.stride, rows, s.head);
    else
      merge_rows(result, s.lanes, block_lse, out.before + first * out.stride, lse.before + first, to, lse.now + first,
                 out.stride, rows, s.head);
  });
}

int64_t backward_floats(const Sizes& s) {  // per thread: k, v, dk, dv, and a strip's q, dout (both ways), dq, P, dS
  return 4 * s.length * s.lanes + kStrip * (3 * s.lanes + 2 * s.head + 2 * s.length);
}

// One head of keys and values with all the heads of queries that share it, so that none is added to by two threads.
template <class T>
void backward_group(const Sizes& s, const T* qkv, const T* kv, const T* out, const T* dout, const float* lse,
                    const Running& dq, float* dkv, float* scratch) {
  const int64_t tile = s.length * s.lanes, size = kStrip * s.lanes;
  float *k = scratch, *v = k + tile, *dk = v + tile, *dv = dk + tile, *q = dv + tile, *go = q + size;
  float *dq_of_strip = go + size, *q_lanes = dq_of_strip + size, *go_lanes = q_lanes + kStrip * s.head;
  float *p = go_lanes + kStrip * s.head, *ds = p + kStrip * s.length, dots[kStrip] = {}, shift[kStrip] = {};
  std::memset(dk, 0, 2 * tile * sizeof(float));
  pack_rows(kv, s.shared, k, s.reach(), s.head, s.lanes);
  pack_rows(kv + s.shared / 2, s.shared, v, s.reach(), s.head, s.lanes);
  Prefetcher none;
  for (int64_t h = 0; h < s.heads / s.kv_heads; ++h) {
    const int64_t column = h * s.head;
    const Running dq_of_head{dq.before == nullptr ? nullptr : dq.before + column, dq.now + column, dq.stride};
    each_strip(s, [&](const Queries& chunk, int64_t first, int64_t rows) {
      keep_rows(dq_of_head, first, rows, s.head);
      if (chunk.seen == 0) return;
      const Strip strip(chunk.sight(first), rows);
      const int64_t at = first * s.width + column;
      for (int64_t r = 0; r < rows; ++r) shift[r] = lse[h * s.length + first + r] * kLog2E;
      pack_rows(qkv + first * s.wide + column, s.wide, q, rows, s.head, s.lanes);
      pack_rows(dout + at, s.width, go, rows, s.head, s.lanes);
      pack_lanes(q, s.lanes, q_lanes, rows, s.head, s.scale * kLog2E);
      pack_lanes(go, s.lanes, go_lanes, rows, s.head, s.scale);
      row_dots(out + at, dout + at, s.width, rows, s.head, s.scale, dots);
      strip.score({k, s.lanes}, s.head, q_lanes, p, kStrip, none);
      strip.score({v, s.lanes}, s.head, go_lanes, ds, kStrip, none);
      score_gradients(p, ds, kStrip, strip, 1.0f, 1.0f, shift, dots);
      strip.scatter(p, kStrip, {go, s.lanes}, s.lanes, dv, s.lanes, strip.keys, none);
      strip.scatter(ds, kStrip, {q, s.lanes}, s.lanes, dk, s.lanes, strip.keys, none);
      strip.gather(ds, kStrip, {k, s.lanes}, s.lanes, nullptr, dq_of_strip, s.lanes, none);
      add_rows(dq_of_strip, s.lanes, dq_of_head.now + first * dq.stride, dq.stride, rows, s.head);
    });
  }
  unpack_rows(dk, s.lanes, dkv, s.shared, s.length, s.head);
  unpack_rows(dv, s.lanes, dkv + s.shared / 2, s.shared, s.length, s.head);
}

int64_t scratch_bytes(const OpView& view, int64_t (*floats)(const Sizes&)) {
  return view.threads() * round_up(floats(sizes_of(view)) * static_cast<int64_t>(sizeof(float)), kAlignBytes);
}

const float* running(const OpView& view, size_t read) { return view.reads() > read ? view.in<float>(read) : nullptr; }
const float* at(const float* data, int64_t i) { return data == nullptr ? nullptr : data + i; }

template <class T>
std::unique_ptr<Kernel> forward_kernel(const OpView& view) {
  const Sizes s = sizes_of(view);
  PRUN_CHECK(view.reads() == 4 || view.attrs().integer("hop") == 0, "a rank's queries see its own keys first");
  view.expect_count(view.write(0), s.batch * s.length * s.width);
  view.expect_count(view.write(1), s.batch * s.heads * s.length);
  return kernel_of([s, qkv = view.in<T>(0), kv = view.in<T>(1), out_before = running(view, 2),
                    lse_before = running(view, 3), out = view.out<float>(0), lse = view.out<float>(1),
                    threads = view.threads(), share = scratch_bytes(view, forward_floats) / view.threads(),
                    scratch = view.scratch(scratch_bytes(view, forward_floats))] {
    parallel_for(threads, s.batch * s.heads, [&](int64_t i, int thread) {
      const int64_t b = i / s.heads, h = i % s.heads, group = h * s.kv_heads / s.heads;
      const int64_t row = b * s.length, to = row * s.width + h * s.head;
      forward_head(s, qkv + row * s.wide + h * s.head, kv + row * s.shared + group * s.head,
                   {at(out_before, to), out + to, s.width}, {at(lse_before, i * s.length), lse + i * s.length, 1},
                   reinterpret_cast<float*>(scratch.data + thread * share));
    });
  });
}

template <class T>
std::unique_ptr<Kernel> backward_kernel(const OpView& view) {
  const Sizes s = sizes_of(view);
  for (size_t i : {2, 3}) view.expect_count(view.read(i), s.batch * s.length * s.width);
  view.expect_count(view.read(4), s.batch * s.heads * s.length);
  view.expect_count(view.write(0), s.batch * s.length * s.width);
  view.expect_count(view.write(1), s.batch * s.length * s.shared);
  return kernel_of([s, qkv = view.in<T>(0), kv = view.in<T>(1), out = view.in<T>(2), dout = view.in<T>(3),
                    lse = view.in<float>(4), dq_before = running(view, 5), dq = view.out<float>(0),
                    dkv = view.out<float>(1), threads = view.threads(),
                    share = scratch_bytes(view, backward_floats) / view.threads(),
                    scratch = view.scratch(scratch_bytes(view, backward_floats))] {
    parallel_for(threads, s.batch * s.kv_heads, [&](int64_t i, int thread) {
      const int64_t b = i / s.kv_heads, group = i % s.kv_heads, row = b * s.length;
      const int64_t head = group * s.heads / s.kv_heads, column = head * s.head, to = row * s.width + column;
      const int64_t shared = row * s.shared + group * s.head;
      backward_group(s, qkv + row * s.wide + column, kv + shared, out + to, dout + to,
                     lse + (b * s.heads + head) * s.length, {at(dq_before, to), dq + to, s.width}, dkv + shared,
                     reinterpret_cast<float*>(scratch.data + thread * share));
    });
  });
}

}  // namespace

const Family attention_block_kernels = {
    {"attention_block", PRUN_FLOAT_MAKER(read(0), forward_kernel<T>(view)), Accepts::floats,
     [](const OpView& v) { return scratch_bytes(v, forward_floats); }},
    {"attention_block_grad", PRUN_FLOAT_MAKER(read(0), backward_kernel<T>(view)), Accepts::floats,
     [](const OpView& v) { return scratch_bytes(v, backward_floats); }},
};

}  // namespace prun::cpu
