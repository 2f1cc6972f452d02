// The op attend and its gradient in f32 query blocks (query_block.h); bf16 heads are converted to f32 rows.
//
// A block computes the keys from the first to the last one that any of its queries sees, so that the cost follows the
// keys that are seen: the triangle of a causal mask, a window, or documents.
//
//      keys of a block      first ────────── inner ────────── inner_end ────────── end
//      seen by              some queries     all queries      some queries
//      compared             with each range  not              with each range
//
// Surprising fact: unseen scores are -inf in memory, and their probabilities are set to 0, since 2^t clamps t.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/attention/accumulator_tile.h"
#include "kernels/cpu/attention/heads.h"
#include "kernels/cpu/ops/tanh.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vectors.h"
#include "prun/sdk/key_rules.h"

namespace prun::cpu {
namespace {

constexpr float kUnseen = -std::numeric_limits<float>::infinity();

// A mask of i32, f32 or bf16 with a row for each query, or one for all queries of a sample; 0 = unseen.
struct KeyMask {
  const void* data = nullptr;
  Dtype dtype = Dtype::i32;
  int64_t rows = 0, keys = 0;  // rows of a sample

  bool one_row() const { return rows == 1; }
  // Calls f(is_seen), where is_seen(key) returns whether query `t` of sample `b` sees the key.
  template <class F>
  void row(int64_t b, int64_t t, const F& f) const {
    const int64_t at = (b * rows + (one_row() ? 0 : t)) * keys;
    if (dtype == Dtype::i32)
      f([x = static_cast<const int32_t*>(data) + at](int64_t key) { return x[key] != 0; });
    else if (dtype == Dtype::f32)
      f([x = static_cast<const float*>(data) + at](int64_t key) { return x[key] != 0; });
    else
      f([x = static_cast<const bf16*>(data) + at](int64_t key) { return load(x[key]) != 0; });
  }
};

struct Sizes {
  int64_t batch, length, keys, heads, kv_heads, of_heads, first_head;
  int64_t head, value;              // elements of a head of q and k, and of v
  int64_t head_lanes, value_lanes;  // padded to whole vectors
  float scale, cap;                 // cap 0: none
  sdk::KeyRules rules;
  const int32_t* spans = nullptr;
  KeyMask mask;

  explicit Sizes(const OpView& view) {
    const Shape &q = view.read(0).shape, &k = view.read(1).shape, &v = view.read(2).shape;
    const Attrs& attrs = view.attrs();
    batch = q.at(0), length = q.at(1), keys = k.at(1);
    heads = attrs.integer("heads", 1), kv_heads = attrs.integer("kv_heads", heads);
    const std::string axis = attrs.text("kv_axis");
    of_heads = axis.empty() ? heads : attrs.integer("of_heads");
    first_head = axis.empty() ? 0 : view.share_along(axis).index * heads;
    head = q.at(2) / heads, value = v.at(2) / kv_heads;
    PRUN_CHECK(k.at(2) == kv_heads * head && of_heads % kv_heads == 0,
               fmt::format("{} {} heads {} kv_heads {}", shape_text(q), shape_text(k), heads, kv_heads));
    head_lanes = round_up(head, kTileColumns), value_lanes = round_up(value, kTileColumns);
    scale = static_cast<float>(attrs.number("scale", 1 / std::sqrt(static_cast<double>(head))));
    cap = static_cast<float>(attrs.number("softcap", 0));
    rules = {keys, attrs.integer("causal") != 0, attrs.integer("window")};
  }
  // Resolves spans and mask, the reads from index `rest` on.
  Sizes(const OpView& view, size_t rest) : Sizes(view) {
    if (view.attrs().integer("spans") != 0) {
      view.expect_count(view.read(rest), batch * length * 2);
      spans = view.in<int32_t>(rest++);
    }
    if (view.attrs().integer("masked") == 0) return;
    const Tensor& tensor = view.read(rest);
    mask = {nullptr, tensor.dtype, element_count(tensor.shape) / (batch * keys), keys};
    if (tensor.dtype == Dtype::i32)
      mask.data = view.in<int32_t>(rest);
    else if (tensor.dtype == Dtype::f32)
      mask.data = view.in<float>(rest);
    else
      mask.data = view.in<bf16>(rest);
  }
  int64_t kv_head(int64_t h) const { return sdk::kv_head_of(first_head + h, of_heads, kv_heads); }
  int64_t q_stride() const { return heads * head; }
  int64_t k_stride() const { return kv_heads * head; }
  int64_t v_stride() const { return kv_heads * value; }
  int64_t out_stride() const { return heads * value; }
};

// The keys that a block of queries sees. Keys and bounds count from `first`.
struct Block {
  int64_t begin, rows, first = 0, count = 0;  // of queries; of keys
  int64_t inner = 0, inner_end = 0;           // keys that all queries see by the rules
  int32_t from[kQueryBlock], to[kQueryBlock];

  Block(const Sizes& s, int64_t b, int64_t begin_) : begin(begin_), rows(std::min(kQueryBlock, s.length - begin_)) {
    sdk::KeyRange ranges[kQueryBlock];
    int64_t end = 0;
    first = s.keys;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = begin + r;
      ranges[r] = s.rules.of(t, s.spans == nullptr ? nullptr : s.spans + (b * s.length + t) * 2);
      if (ranges[r].first >= ranges[r].end) continue;
      first = std::min(first, ranges[r].first), end = std::max(end, ranges[r].end);
    }
    count = std::max<int64_t>(0, end - first);
    inner_end = count;
    for (int64_t r = 0; r < kQueryBlock; ++r) {  // rows after the last repeat it
      const sdk::KeyRange& range = ranges[std::min(r, rows - 1)];
      from[r] = static_cast<int32_t>(range.first - first), to[r] = static_cast<int32_t>(range.end - first);
      if (range.first >= range.end) from[r] = to[r] = 0;
      inner = std::max<int64_t>(inner, from[r]), inner_end = std::min<int64_t>(inner_end, to[r]);
    }
    if (inner_end < inner) inner = inner_end = count;
  }
  QueryBlock gemms() const { return {Mask{count, 0}, rows}; }
};

// Sets the scores [key][query] that a query does not see to -inf.
void hide_by_rules(float* scores, const Block& block) {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    using Signed = typename BitsOf<Floats<lanes>>::Signed;
    const auto hide = [&](int64_t begin, int64_t end) PRUN_INLINED {
      for (int64_t v = 0; v < kQueryBlock; v += lanes) {
        Signed from, to;
        std::memcpy(&from, block.from + v, sizeof from);
        std::memcpy(&to, block.to + v, sizeof to);
        for (int64_t key = begin; key < end; ++key) {
          const Signed at = Signed{} + static_cast<int32_t>(key);
          float* s = scores + key * kQueryBlock + v;
          const Floats<lanes> x = load_lanes<lanes>(s), unseen = Floats<lanes>{} + kUnseen;
          store_lanes<lanes>(s, ((at >= from) & (at < to)) ? x : unseen);
        }
      }
    };
    hide(0, std::min(block.inner, block.count));
    hide(block.inner_end, block.count);
  });
}

void hide_by_mask(float* scores, const Block& block, const KeyMask& mask, int64_t b) {
  if (mask.one_row())
    return mask.row(b, 0, [&](const auto& is_seen) {
      for (int64_t key = 0; key < block.count; ++key)
        if (!is_seen(block.first + key)) std::fill_n(scores + key * kQueryBlock, kQueryBlock, kUnseen);
    });
  for (int64_t r = 0; r < block.rows; ++r)
    mask.row(b, block.begin + r, [&](const auto& is_seen) {
      for (int64_t key = 0; key < block.count; ++key)
        if (!is_seen(block.first + key)) scores[key * kQueryBlock + r] = kUnseen;
    });
}

// Computes scores in powers of two, [key][kQueryBlock], -inf where unseen; `queries` is scratch. With a cap, `slopes`
// gets the derivatives of the capped scores if it is not null.
template <class T>
void block_scores(const Sizes& s, const Block& block, int64_t b, const T* q, const FloatRows& k, float* queries,
                  float* scores, float* slopes, Prefetcher& prefetch) {
  const float factor = s.cap > 0 ? s.scale / s.cap : s.scale * kLog2E;
  pack_transposed(q, s.q_stride(), queries, block.rows, s.head, factor);
  block.gemms().score(k.from(block.first), s.head, queries, scores, kQueryBlock, prefetch);
  if (s.cap > 0) {
    const float in_powers = s.cap * kLog2E;
    with_lanes([&]<int lanes>() PRUN_INLINED {
      for (int64_t i = 0; i < block.count * kQueryBlock; i += lanes) {
        const Floats<lanes> t = tanh_f32(load_lanes<lanes>(scores + i));
        store_lanes<lanes>(scores + i, Floats<lanes>(t * in_powers));
        if (slopes != nullptr) store_lanes<lanes>(slopes + i, Floats<lanes>(1.0f - t * t));
      }
    });
  }
  hide_by_rules(scores, block);
  if (s.mask.data != nullptr) hide_by_mask(scores, block, s.mask, b);
}

// Converts scores to unnormalized probabilities; writes the log-sum-exp and 1/sum of each query, 0 without keys.
void softmax(float* scores, const Block& block, float* lse, float* inverse) {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    using V = Floats<lanes>;
    for (int64_t v = 0; v < kQueryBlock; v += lanes) {
      V max = V{} + kUnseen, sum{};
      for (int64_t key = 0; key < block.count; ++key) {
        const V s = load_lanes<lanes>(scores + key * kQueryBlock + v);
        max = s > max ? s : max;
      }
      const V top = max == kUnseen ? V{} : max;
      for (int64_t key = 0; key < block.count; ++key) {
        float* at = scores + key * kQueryBlock + v;
        const V s = load_lanes<lanes>(at), p = s == kUnseen ? V{} : power_of_two(V(s - top));
        sum += p;
        store_lanes<lanes>(at, p);
      }
      const V none = V{};
      store_lanes<lanes>(lse + v, sum == 0.0f ? none : V((top + log2_f32(sum)) * 0.693147181f));
      store_lanes<lanes>(inverse + v, sum == 0.0f ? none : V(1.0f / sum));
    }
  });
}

// Converts in place: scores to P = 2^(S - shift), and dP to dS = scale · P·(dP - dots)·slope; both are 0 where unseen.
void score_gradients(const Sizes& s, const Block& block, float* scores, float* dp, const float* slopes,
                     const float* shift, const float* dots) {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    using V = Floats<lanes>;
    constexpr float kMost = 127.0f;  // exponents of a softmax are at most 0
    for (int64_t v = 0; v < kQueryBlock; v += lanes) {
      const V less = load_lanes<lanes>(shift + v), mean = load_lanes<lanes>(dots + v);
      for (int64_t key = 0; key < block.count; ++key) {
        const int64_t at = key * kQueryBlock + v;
        const V x = load_lanes<lanes>(scores + at), p = x == kUnseen ? V{} : power_of_two(at_most(V(x - less), kMost));
        V ds = s.scale * p * (load_lanes<lanes>(dp + at) - mean);
        if (slopes != nullptr) ds *= load_lanes<lanes>(slopes + at);
        store_lanes<lanes>(scores + at, p);
        store_lanes<lanes>(dp + at, ds);
      }
    }
  });
}

int64_t forward_floats(const Sizes& s) {
  return s.keys * (s.head_lanes + s.value_lanes) + kQueryBlock * (s.head + s.keys + s.value_lanes);
}
int64_t backward_floats(const Sizes& s) {
  return 2 * s.keys * (s.head_lanes + s.value_lanes) + kQueryBlock * ((s.cap > 0 ? 3 : 2) * s.keys + s.head + s.value) +
         kQueryBlock * (2 * s.head_lanes + s.value_lanes);
}

template <class T>
struct Operands {
  const T *q, *k, *v;
  const T* q_row(const Sizes& s, int64_t b, int64_t t, int64_t h) const {
    return q + (b * s.length + t) * s.q_stride() + h * s.head;
  }
  const T* k_row(const Sizes& s, int64_t b, int64_t head) const {
    return k + b * s.keys * s.k_stride() + head * s.head;
  }
  const T* v_row(const Sizes& s, int64_t b, int64_t head) const {
    return v + b * s.keys * s.v_stride() + head * s.value;
  }
};

template <class T>
void forward_head(const Sizes& s, const Operands<T>& in, int64_t b, int64_t h, T* out, float* lse, float* scratch) {
  Carve carve{scratch};
  float *k = carve(s.keys * s.head_lanes), *v = carve(s.keys * s.value_lanes), *queries = carve(kQueryBlock * s.head),
        *scores = carve(kQueryBlock * s.keys), *result = carve(kQueryBlock * s.value_lanes);
  pack_rows(in.k_row(s, b, s.kv_head(h)), s.k_stride(), k, s.keys, s.head, s.head_lanes);
  pack_rows(in.v_row(s, b, s.kv_head(h)), s.v_stride(), v, s.keys, s.value, s.value_lanes);
  const FloatRows k_rows{k, s.head_lanes}, v_rows{v, s.value_lanes};
  Prefetcher prefetch;
  float block_lse[kQueryBlock], inverse[kQueryBlock];
  for (int64_t begin = 0; begin < s.length; begin += kQueryBlock) {
    const Block block(s, b, begin);
    block_scores(s, block, b, in.q_row(s, b, begin, h), k_rows, queries, scores, nullptr, prefetch);
    softmax(scores, block, block_lse, inverse);
    if (block.count > 0)
      block.gemms().reduce_over_keys(scores, kQueryBlock, v_rows.from(block.first), s.value_lanes, inverse, result,
                                     s.value_lanes, prefetch);
    else
      std::fill_n(result, block.rows * s.value_lanes, 0.0f);
    unpack_rows(result, s.value_lanes, out + (b * s.length + begin) * s.out_stride() + h * s.value, s.out_stride(),
                block.rows, s.value);
    std::copy(block_lse, block_lse + block.rows, lse + (b * s.heads + h) * s.length + begin);
  }
}

// Computes dots[r] = Σ out·dout of the rows of a block; 0 after the last.
template <class T>
void row_dots(const Sizes& s, const T* out, const T* dout, int64_t rows, float* dots) {
  std::fill_n(dots, kQueryBlock, 0.0f);
  with_lanes([&]<int lanes>() PRUN_INLINED {
    for (int64_t r = 0; r < rows; ++r)
      dots[r] = sum_lanes<lanes>(s.value, [&](auto at) PRUN_INLINED {
        return at.load(out + r * s.out_stride()) * at.load(dout + r * s.out_stride());
      });
  });
}

// Computes the gradients of a head of keys and values, and of the heads of queries that use it.
template <class T>
void backward_head(const Sizes& s, const Operands<T>& in, const T* out, const T* dout, const float* lse, int64_t b,
                   int64_t kv_head, T* dq, T* dk, T* dv, float* scratch) {
  Carve carve{scratch};
  float *k = carve(s.keys * s.head_lanes), *v = carve(s.keys * s.value_lanes), *k_sums = carve(s.keys * s.head_lanes),
        *v_sums = carve(s.keys * s.value_lanes);
  float *p = carve(kQueryBlock * s.keys), *ds = carve(kQueryBlock * s.keys),
        *slopes = s.cap > 0 ? carve(kQueryBlock * s.keys) : nullptr;
  float *queries = carve(kQueryBlock * s.head), *gradients = carve(kQueryBlock * s.value);
  float *q_rows = carve(kQueryBlock * s.head_lanes), *dq_rows = carve(kQueryBlock * s.head_lanes),
        *dout_rows = carve(kQueryBlock * s.value_lanes);
  pack_rows(in.k_row(s, b, kv_head), s.k_stride(), k, s.keys, s.head, s.head_lanes);
  pack_rows(in.v_row(s, b, kv_head), s.v_stride(), v, s.keys, s.value, s.value_lanes);
  std::fill_n(k_sums, s.keys * s.head_lanes, 0.0f);
  std::fill_n(v_sums, s.keys * s.value_lanes, 0.0f);
  const FloatRows k_all{k, s.head_lanes}, v_all{v, s.value_lanes};
  Prefetcher prefetch;
  float dots[kQueryBlock], shift[kQueryBlock];
  for (int64_t h = 0; h < s.heads; ++h) {
    if (s.kv_head(h) != kv_head) continue;
    for (int64_t begin = 0; begin < s.length; begin += kQueryBlock) {
      const Block block(s, b, begin);
      const T* q = in.q_row(s, b, begin, h);
      T* q_gradient = dq + (q - in.q);
      const int64_t row = (b * s.length + begin) * s.out_stride() + h * s.value;
      if (block.count == 0) {
        std::fill_n(dq_rows, block.rows * s.head_lanes, 0.0f);
        unpack_rows(dq_rows, s.head_lanes, q_gradient, s.q_stride(), block.rows, s.head);
        continue;
      }
      const QueryBlock gemms = block.gemms();
      block_scores(s, block, b, q, k_all, queries, p, slopes, prefetch);
      pack_transposed(dout + row, s.out_stride(), gradients, block.rows, s.value, 1.0f);
      gemms.score(v_all.from(block.first), s.value, gradients, ds, kQueryBlock, prefetch);
      row_dots(s, out + row, dout + row, block.rows, dots);
      std::fill_n(shift, kQueryBlock, 0.0f);
      for (int64_t r = 0; r < block.rows; ++r) shift[r] = lse[(b * s.heads + h) * s.length + begin + r] * kLog2E;
      score_gradients(s, block, p, ds, slopes, shift, dots);
      gemms.reduce_over_keys(ds, kQueryBlock, k_all.from(block.first), s.head_lanes, nullptr, dq_rows, s.head_lanes,
                             prefetch);
      unpack_rows(dq_rows, s.head_lanes, q_gradient, s.q_stride(), block.rows, s.head);
      pack_rows(q, s.q_stride(), q_rows, block.rows, s.head, s.head_lanes);
      pack_rows(dout + row, s.out_stride(), dout_rows, block.rows, s.value, s.value_lanes);
      gemms.reduce_over_queries(p, kQueryBlock, {dout_rows, s.value_lanes}, s.value_lanes,
                                v_sums + block.first * s.value_lanes, s.value_lanes, block.count, prefetch);
      gemms.reduce_over_queries(ds, kQueryBlock, {q_rows, s.head_lanes}, s.head_lanes,
                                k_sums + block.first * s.head_lanes, s.head_lanes, block.count, prefetch);
    }
  }
  unpack_rows(k_sums, s.head_lanes, dk + (in.k_row(s, b, kv_head) - in.k), s.k_stride(), s.keys, s.head);
  unpack_rows(v_sums, s.value_lanes, dv + (in.v_row(s, b, kv_head) - in.v), s.v_stride(), s.keys, s.value);
}

int64_t forward_workspace(const OpView& view) {
  return view.threads() * ThreadScratch::bytes_of(forward_floats(Sizes(view)));
}
int64_t backward_workspace(const OpView& view) {
  return view.threads() * ThreadScratch::bytes_of(backward_floats(Sizes(view)));
}

template <class T>
std::unique_ptr<Kernel> forward_kernel(const OpView& view) {
  const Sizes s(view, 3);
  view.expect_count(view.write(0), s.batch * s.length * s.out_stride());
  view.expect_count(view.write(1), s.batch * s.heads * s.length);
  return kernel_of([s, in = Operands<T>{view.in<T>(0), view.in<T>(1), view.in<T>(2)}, out = view.out<T>(0),
                    lse = view.out<float>(1), threads = view.threads(),
                    scratch = ThreadScratch(view, forward_floats(s))] {
    parallel_for(threads, s.batch * s.heads, [&](int64_t i, int thread) {
      forward_head(s, in, i / s.heads, i % s.heads, out, lse, scratch.of(thread));
    });
  });
}

template <class T>
std::unique_ptr<Kernel> backward_kernel(const OpView& view) {
  const Sizes s(view, 6);
  for (const size_t i : {3, 4}) view.expect_count(view.read(i), s.batch * s.length * s.out_stride());
  view.expect_count(view.read(5), s.batch * s.heads * s.length);
  for (const size_t i : {0, 1, 2}) view.expect_count(view.write(i), element_count(view.read(i).shape));
  return kernel_of([s, in = Operands<T>{view.in<T>(0), view.in<T>(1), view.in<T>(2)}, out = view.in<T>(3),
                    dout = view.in<T>(4), lse = view.in<float>(5), dq = view.out<T>(0), dk = view.out<T>(1),
                    dv = view.out<T>(2), threads = view.threads(), scratch = ThreadScratch(view, backward_floats(s))] {
    parallel_for(threads, s.batch * s.kv_heads, [&](int64_t i, int thread) {
      backward_head(s, in, out, dout, lse, i / s.kv_heads, i % s.kv_heads, dq, dk, dv, scratch.of(thread));
    });
  });
}

}  // namespace

const Family attend_kernels = {
    {"attend", PRUN_FLOAT_MAKER(read(0), forward_kernel<T>(view)), Accepts::floats, forward_workspace},
    {"attend_grad", PRUN_FLOAT_MAKER(read(0), backward_kernel<T>(view)), Accepts::floats, backward_workspace}};

}  // namespace prun::cpu
