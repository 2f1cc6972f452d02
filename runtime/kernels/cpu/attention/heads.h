// The geometry that all attention kernels share, and their scratch per thread.
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
  float scale;    // scale of scores: 1/√head

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
  // Return offsets in a row of qkv: to the queries of head h, and to the keys and values that they attend to.
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
  int64_t bytes;  // bytes for each thread

  static int64_t bytes_of(int64_t floats) {
    return round_up(floats * static_cast<int64_t>(sizeof(float)), static_cast<int64_t>(kAlignBytes));
  }
  ThreadScratch(const OpView& view, int64_t floats)
      : memory(view.scratch(view.threads() * bytes_of(floats))), bytes(bytes_of(floats)) {}
  float* of(int64_t thread) const { return reinterpret_cast<float*>(memory.data + thread * bytes); }
};

// Divides scratch into arrays.
struct Carve {
  float* next;
  float* operator()(int64_t floats) { return next += floats, next - floats; }
};

}  // namespace prun::cpu
