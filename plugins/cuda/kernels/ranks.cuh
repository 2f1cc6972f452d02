// Ranks of items among those of the same bucket, in the order of the items: the index of a token among those of its row
// of a table, or of its expert. They are identical in every run, because only integers are added by atomics.
//
// Items are divided into chunks by their number alone:
//
//      count_items     counts[chunk][bucket] = items of the bucket in the chunk
//      begin_chunks    counts[chunk][bucket] = items of the bucket in earlier chunks; for each bucket
//      rank_items      rank = counts[chunk][bucket] + items of the bucket earlier in the chunk; a block for each chunk
#pragma once
#include <algorithm>

#include "block.cuh"
#include "launch.h"

namespace prun::cuda {

inline constexpr int kRankThreads = 256;

struct Chunks {
  int64_t items, buckets, size, count;

  Chunks(int64_t item_count, int64_t bucket_count) : items(item_count), buckets(bucket_count) {
    // A table of counts for each chunk: at most 8 MiB together, or 16 chunks.
    const int64_t affordable = std::max<int64_t>(16, (int64_t{1} << 21) / std::max<int64_t>(1, buckets));
    const int64_t steps = std::max<int64_t>(1, (items + kRankThreads - 1) / kRankThreads);
    const int64_t wanted = std::min({steps, affordable, int64_t{64}});
    size = (steps + wanted - 1) / wanted * kRankThreads;
    count = std::max<int64_t>(1, (items + size - 1) / size);
  }
  size_t bytes() const { return static_cast<size_t>(count * buckets) * sizeof(int32_t); }  // bytes of the counts
};

// Computes counts [chunks.count, chunks.buckets], which must be zero. `key(i)` returns item i's bucket, or -1.
template <class Key>
__global__ void __launch_bounds__(kRankThreads) count_items(Key key, Chunks chunks, int32_t* counts) {
  for (int64_t i = first_item(); i < chunks.items; i += item_stride()) {
    const int32_t bucket = key(i);
    if (bucket >= 0) atomicAdd(counts + i / chunks.size * chunks.buckets + bucket, 1);
  }
}

// Replaces a bucket's counts by the numbers of its items before each chunk. Returns their total.
__device__ __forceinline__ int32_t begin_chunks(const Chunks& chunks, int32_t* counts, int64_t bucket) {
  constexpr int kAhead = 8;  // loads in flight together
  int32_t before = 0;
  for (int64_t chunk = 0; chunk < chunks.count; chunk += kAhead) {
    int32_t here[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      here[k] = chunk + k < chunks.count ? counts[(chunk + k) * chunks.buckets + bucket] : 0;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (chunk + k < chunks.count) counts[(chunk + k) * chunks.buckets + bucket] = before;
      before += here[k];
    }
  }
  return before;
}

// Calls take(i, bucket, rank) for every item that has a bucket. Overwrites the counts.
template <class Key, class Take>
__global__ void __launch_bounds__(kRankThreads) rank_items(Key key, Take take, Chunks chunks, int32_t* counts) {
  __shared__ __align__(16) int32_t buckets[kRankThreads];
  int32_t* next = counts + blockIdx.x * chunks.buckets;  // counts of this chunk
  const int me = static_cast<int>(threadIdx.x);
  const int64_t first = blockIdx.x * chunks.size,
                last = first + chunks.size < chunks.items ? first + chunks.size : chunks.items;
  for (int64_t at = first; at < last; at += kRankThreads) {
    const int32_t bucket = at + me < last ? key(at + me) : -1;
    buckets[me] = bucket;
    __syncthreads();
    int before = 0, after = 0;
    for (int j = 0; j < kRankThreads; j += 4) {
      const int4 four = *reinterpret_cast<const int4*>(buckets + j);
      const int32_t others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        before += others[k] == bucket && j + k < me ? 1 : 0;
        after += others[k] == bucket && j + k > me ? 1 : 0;
      }
    }
    const int32_t rank = bucket >= 0 ? next[bucket] + before : 0;
    __syncthreads();  // all threads have read `next`, and the buckets
    if (bucket < 0) continue;
    take(at + me, bucket, rank);
    if (after == 0) next[bucket] = rank + 1;
  }
}

// The launches of count_items and rank_items.
template <class Key>
void count_in_chunks(Key key, const Chunks& chunks, int32_t* counts, cudaStream_t stream) {
  check(cudaMemsetAsync(counts, 0, chunks.bytes(), stream), "cudaMemsetAsync");
  launch(count_items<Key>, blocks_for(chunks.items, kRankThreads), kRankThreads, 0, stream, key, chunks, counts);
}
template <class Key, class Take>
void rank_in_chunks(Key key, Take take, const Chunks& chunks, int32_t* counts, cudaStream_t stream) {
  launch(rank_items<Key, Take>, static_cast<unsigned>(chunks.count), kRankThreads, 0, stream, key, take, chunks,
         counts);
}

}  // namespace prun::cuda
