// Prefetch of the next head's rows while a head is computed. Delete its calls to read the algorithm alone.
#pragma once
#include <cstdint>

#include "kernels/cpu/attention/heads.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/prefetch.h"

namespace prun::cpu {

// Prefetches the rows of the next head while a head is computed; each query block prefetches its share. If the
// second-level cache holds two samples, blocks prefetch whole rows of the next sample instead, because the hardware
// prefetcher then follows. Results do not depend on it.
class HeadPrefetch {
 public:
  // Plans the prefetch during head h of `sample`. `whole_samples`: the cache holds the next sample; `first_sample`:
  // nothing was prefetched yet.
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
