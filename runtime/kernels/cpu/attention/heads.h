// The geometry that all attention kernels share, their scratch per thread, and the prefetch of the next head.
#pragma once
#include <fmt/format.h>

#include <cmath>

#include "kernels/cpu/attention/accumulator_tile.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/kernel.h"

namespace prun::cpu {

// The heads of a fused qkv [batch, length, (heads + 2·kv_heads)·head]. A row has the queries of all heads, then the
// keys, then the values; `heads / kv_heads` heads of queries share one head of keys and values.
struct Heads {
  int64_t batch, length, stride;  // stride: elements from a row of qkv to the next
  int64_t heads, kv_heads;
  int64_t head;   // elements of a head
  int64_t width;  // elements in a row of queries, and of the output
  int64_t lanes;  // `head` padded to whole vectors
  float scale;    // of scores: 1/√head

  explicit Heads(const OpView& view) {
    const Shape& shape = view.read(0).shape;
    PRUN_CHECK(shape.size() == 3, shape_text(shape));
    batch = shape[0], length = shape[1], stride = shape[2];
    heads = view.attrs().integer("heads", 1);
    kv_heads = view.attrs().integer("kv_heads", heads);
    PRUN_CHECK(kv_heads > 0 && heads % kv_heads == 0 && stride % (heads + 2 * kv_heads) == 0,
               fmt::format("{} heads {} kv_heads {}", shape_text(shape), heads, kv_heads));
    head = stride / (heads + 2 * kv_heads);
    width = heads * head;
    lanes = round_up(head, kTileColumns);
    scale = 1.0f / std::sqrt(static_cast<float>(head));
  }
  int64_t kv_width() const { return 2 * kv_heads * head; }  // elements of a row's keys and values
  int64_t group() const { return heads / kv_heads; }        // heads of queries that share keys
  int64_t block_rows(int64_t first) const { return std::min(kQueryBlock, length - first); }
  // Return offsets in a row of qkv: of the queries of head h, and of the keys and values that they attend to.
  int64_t q(int64_t h) const { return h * head; }
  int64_t k(int64_t h) const { return width + h / group() * head; }
  int64_t v(int64_t h) const { return k(h) + kv_heads * head; }
};

// Returns the floats of scratch of a forward pass over query blocks: k, v, and a block's queries, scores and result.
inline int64_t forward_floats(const Heads& s) {
  return 2 * s.length * s.lanes + kQueryBlock * (s.head + s.length + s.lanes);
}

// Scratch of `floats` floats for each thread.
struct ThreadScratch {
  Scratch memory;
  int64_t bytes;  // for each thread

  static int64_t bytes_of(int64_t floats) {
    return round_up(floats * static_cast<int64_t>(sizeof(float)), static_cast<int64_t>(kAlignBytes));
  }
  ThreadScratch(const OpView& view, int64_t floats)
      : memory(view.scratch(view.threads() * bytes_of(floats))), bytes(bytes_of(floats)) {}
  float* of(int64_t thread) const { return reinterpret_cast<float*>(memory.data + thread * bytes); }
};

// Prefetches the rows of the next head while a head is computed; each query block prefetches its share. If the
// second-level cache holds two samples, blocks prefetch whole rows of the next sample instead, because the hardware
// prefetcher then follows. Results do not depend on it.
class HeadPrefetch {
 public:
  // Head h of `sample`; `whole_samples`: the cache holds the next sample; `first_sample`: nothing was prefetched yet.
  HeadPrefetch(const Heads& s, int64_t sample, int64_t h, bool whole_samples = false, bool first_sample = true)
      : s_(s), h_(h), of_heads_(first_sample || !whole_samples), of_samples_(whole_samples && sample + 1 < s.batch) {
    if (h + 1 < s.heads) {
      q_ = narrow_ = s.head;
      kv_ = s.k(h + 1) - s.k(h);
    } else if (sample + 1 < s.batch) {
      q_ = s.length * s.stride - s.q(h);
      kv_ = s.length * s.stride + s.k(0) - s.k(h);
      narrow_ = s.length * s.width - s.q(h);
    }
  }
  // Queues the share of the `rows` queries from `first` on. Tensors are the sample's.
  template <class T>
  void forward(int64_t first, int64_t rows, const T* qkv, const T* out, Prefetcher& prefetch) const {
    if (of_heads_) {
      add_qkv(first, rows, qkv, prefetch);
      if (narrow_ != 0) add(out + first * s_.width + s_.q(h_) + narrow_, s_.width, rows, prefetch);
    }
    if (of_samples_) {
      add_share(first, qkv, s_.stride, prefetch);
      add_share(first, out, s_.width, prefetch);
    }
  }
  template <class T>
  void backward(int64_t first, int64_t rows, const T* qkv, const T* out, const T* dout, const T* dqkv,
                Prefetcher& prefetch) const {
    if (of_heads_) {
      for (const int64_t written : {s_.q(h_), s_.k(h_), s_.v(h_)})  // rows that this head writes
        add(dqkv + first * s_.stride + written, s_.stride, rows, prefetch);
      add_qkv(first, rows, qkv, prefetch);
      if (narrow_ != 0)
        for (const T* x : {out, dout}) add(x + first * s_.width + s_.q(h_) + narrow_, s_.width, rows, prefetch);
    }
    if (of_samples_) {
      for (const T* x : {qkv, dqkv}) add_share(first, x, s_.stride, prefetch);
      for (const T* x : {out, dout}) add_share(first, x, s_.width, prefetch);
    }
  }

 private:
  template <class T>
  void add(const T* from, int64_t stride, int64_t rows, Prefetcher& prefetch) const {
    prefetch.add(from, stride, rows, s_.head);
  }
  template <class T>
  void add_qkv(int64_t first, int64_t rows, const T* qkv, Prefetcher& prefetch) const {
    const T* row = qkv + first * s_.stride;
    if (q_ != 0) add(row + s_.q(h_) + q_, s_.stride, rows, prefetch);
    if (kv_ != 0)
      for (const int64_t at : {s_.k(h_), s_.v(h_)}) add(row + at + kv_, s_.stride, rows, prefetch);
  }
  // Queues a query block's share of the next sample's rows.
  template <class T>
  void add_share(int64_t first, const T* sample, int64_t stride, Prefetcher& prefetch) const {
    const int64_t blocks = (s_.length + kQueryBlock - 1) / kQueryBlock, all = s_.heads * blocks,
                  block = h_ * blocks + first / kQueryBlock;
    const int64_t begin = s_.length * block / all, end = s_.length * (block + 1) / all;
    prefetch.add(sample + (s_.length + begin) * stride, stride, end - begin, stride);
  }

  const Heads& s_;
  int64_t h_;
  int64_t q_ = 0, kv_ = 0, narrow_ = 0;  // elements to the next head's rows: of q, of k and v, of out; 0 = none
  bool of_heads_, of_samples_;
};

}  // namespace prun::cpu
