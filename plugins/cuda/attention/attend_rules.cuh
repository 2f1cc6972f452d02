// The keys that queries of the op attend see, for its kernels: ranges of a tile's rows, and masks.
#pragma once
#include "attend.h"
#include "attention_dots.cuh"
#include "cuda/kernels/launch.h"

namespace prun::cuda {

// Returns the keys of a query by the rules; none after the last query.
__device__ inline KeySpan span_of(const AttendSizes& s, int64_t b, int query) {
  if (query >= s.queries) return {0, 0};
  const sdk::KeyRange range = s.rules.of(query, s.spans == nullptr ? nullptr : s.spans + (b * s.queries + query) * 2);
  if (range.first >= range.end) return {0, 0};
  return {static_cast<int>(range.first), static_cast<int>(range.end)};
}

// Returns whether the mask keeps a key of a query. Both are in the sample.
__device__ inline bool is_kept(const AttendSizes& s, int64_t b, int query, int key) {
  if (s.mask == nullptr) return true;
  const int64_t at = (b * s.mask_rows + (s.mask_rows == 1 ? 0 : query)) * s.keys + key;
  if (s.mask_dtype == PRUN_I32) return static_cast<const int32_t*>(s.mask)[at] != 0;
  if (s.mask_dtype == PRUN_F32) return static_cast<const float*>(s.mask)[at] != 0;
  return (static_cast<const uint16_t*>(s.mask)[at] & 0x7fff) != 0;  // bf16, also -0
}

__device__ inline bool is_seen(const AttendSizes& s, const KeySpan& span, int64_t b, int query, int key) {
  return span.has(key) && is_kept(s, b, query, key);
}

// A mask of keys as bits, 32 keys in a word of shared memory, so that a tile of which it keeps all keys is computed as
// without a mask, and one of which it keeps none is skipped (padding).
//
// Writes the words of keys from..end - 1; keys after the last are not kept. All threads of a block call it.
template <int Threads>
__device__ inline void load_kept(const AttendSizes& s, int64_t b, int from, int end, uint32_t* words) {
  const int lane = threadIdx.x & 31;
#pragma unroll 4
  for (int word = threadIdx.x / 32; from + 32 * word < end; word += Threads / 32) {
    const int key = from + 32 * word + lane;
    const bool kept = is_kept(s, b, 0, min(key, s.keys - 1)) && key < s.keys;
    uint32_t bits = kept ? 1u << lane : 0u;
    for (int step = 16; step > 0; step /= 2) bits |= __shfl_xor_sync(~0u, bits, step);
    if (lane == 0) words[word] = bits;
  }
}
__device__ inline bool has_key_mask(const AttendSizes& s) { return s.mask != nullptr && s.mask_rows == 1; }

// The bits of N neighboring keys.
template <int N>
struct Kept {
  static constexpr int kWords = (N + 31) / 32;
  static constexpr uint32_t kFull = N < 32 ? (1u << (N & 31)) - 1 : ~0u;
  uint32_t words[kWords];

  __device__ bool none() const {
    uint32_t any = 0;
    for (int w = 0; w < kWords; ++w) any |= words[w];
    return any == 0;
  }
  __device__ bool all() const {
    uint32_t every = ~0u;
    for (int w = 0; w < kWords; ++w) every &= words[w];
    return every == kFull;
  }
  // `at` + `more` is the key; `more` is less than 32 - at % 32.
  __device__ bool has(int at, int more) const { return (words[at / 32] >> (at % 32 + more) & 1) != 0; }
};
template <int N>
__device__ inline Kept<N> all_kept() {
  Kept<N> kept;
  for (int w = 0; w < Kept<N>::kWords; ++w) kept.words[w] = Kept<N>::kFull;
  return kept;
}

// The keys [first, end) that any of a tile's queries sees by the rules, and [inner, inner_end), which all of them see.
struct SeenKeys {
  int first, end, inner, inner_end;
  __device__ bool any(int from, int to) const { return from < end && to > first; }
  __device__ bool all(int from, int to) const { return from >= inner && to <= inner_end; }
};

// All lanes of a warp call it together.
__device__ inline SeenKeys seen_by(const KeySpan* spans, int count) {
  SeenKeys seen{INT32_MAX, 0, 0, INT32_MAX};
  for (int i = threadIdx.x & 31; i < count; i += 32) {
    const KeySpan span = spans[i];
    if (span.first < span.end) seen.first = min(seen.first, span.first), seen.end = max(seen.end, span.end);
    seen.inner = max(seen.inner, span.first), seen.inner_end = min(seen.inner_end, span.end);
  }
  for (int step = 16; step > 0; step /= 2) {
    seen.first = min(seen.first, __shfl_xor_sync(~0u, seen.first, step));
    seen.end = max(seen.end, __shfl_xor_sync(~0u, seen.end, step));
    seen.inner = max(seen.inner, __shfl_xor_sync(~0u, seen.inner, step));
    seen.inner_end = min(seen.inner_end, __shfl_xor_sync(~0u, seen.inner_end, step));
  }
  return seen;
}

// Tiles [from, from + count) of `size` rows.
struct TileRange {
  int from, count;
};
__device__ inline TileRange key_tiles(const SeenKeys& seen, int size) {
  if (seen.first >= seen.end) return {0, 0};
  const int from = seen.first / size;
  return {from, (seen.end + size - 1) / size - from};
}

// Returns the tiles of queries of which some sees a key of [first, end). `tiles`: the sample's part of
// AttendBackward::tiles, of `count` entries. All lanes of a warp call it together.
__device__ inline TileRange query_tiles(const KeySpan* tiles, int count, int first, int end, int size) {
  int from = INT32_MAX, to = -1;
  for (int i = threadIdx.x & 31; i < count; i += 32)
    if (tiles[i].first < end && tiles[i].end > first) from = min(from, i), to = i;
  for (int step = 16; step > 0; step /= 2) {
    from = min(from, __shfl_xor_sync(~0u, from, step));
    to = max(to, __shfl_xor_sync(~0u, to, step));
  }
  if (to < 0) return {0, 0};
  from = from * kSpanTile / size;
  return {from, to * kSpanTile / size + 1 - from};
}

template <class T>
RowDots<T> dots_of(const AttendBackward<T>& a) {
  return {a.sizes.batch, a.sizes.queries, a.sizes.heads, a.sizes.value, a.out, a.dout, a.dots};
}

// Writes the union of the keys of each 16 queries; a thread does one entry.
template <class T>
__global__ void tiles_kernel(const AttendBackward<T> a) {
  const AttendSizes& s = a.sizes;
  const int count = (s.queries + kSpanTile - 1) / kSpanTile;
  const int64_t item = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (item >= s.batch * count) return;
  const int64_t b = item / count;
  const int query = static_cast<int>(item % count) * kSpanTile;
  KeySpan all{INT32_MAX, 0};
  for (int i = 0; i < kSpanTile; ++i) {
    const KeySpan span = span_of(s, b, query + i);
    if (span.first < span.end) all.first = min(all.first, span.first), all.end = max(all.end, span.end);
  }
  if (all.first >= all.end) all = {0, 0};
  a.tiles[item] = all;
}

template <class T>
void run_tiles(const AttendBackward<T>& a, cudaStream_t stream) {
  constexpr int kTileThreads = 128;
  launch(tiles_kernel<T>, blocks_for(a.sizes.batch * span_tiles(a.sizes), kTileThreads, INT32_MAX), kTileThreads, 0,
         stream, a);
}

}  // namespace prun::cuda
