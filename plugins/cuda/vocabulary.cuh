// Rows of logits: which columns a rank has, and how a block reads a row once, 16 bytes an access, wherever it begins (a
// vocabulary of 50257 columns puts every row elsewhere).
#pragma once
#include <algorithm>

#include "block.cuh"

namespace prun_cuda {

inline constexpr int kRowThreads = 256;  // of the block that has a row

// All of the vocabulary, or of one that is split over an axis a run of it, whose last columns may be padding.
struct Columns {
  int64_t first, count, valid;  // in the rank's `count` columns from `first` on, only `valid` are in the vocabulary
  int64_t vocab;

  // The column of a target, or -1 when it is another rank's. Targets outside the vocabulary are clamped.
  __device__ __forceinline__ int64_t find(int32_t target) const {
    const int64_t clamped = target < 0 ? 0 : target >= vocab ? vocab - 1 : target;
    return clamped < first || clamped >= first + count ? -1 : clamped - first;
  }
};

inline Columns columns_of(const OpView& view, const Tensor& logits) {
  const Share share = view.share("axis");
  Columns c;
  c.count = logits.shape.last();
  c.first = share.index * c.count;
  c.vocab = view.integer("vocab", share.of * c.count);
  c.valid = std::clamp<int64_t>(c.vocab - c.first, 0, c.count);
  return c;
}

// Calls f(i, x) for the elements i, i + 1 ... of the row that a thread has, x being an array of them as f32: 1, a pack,
// or with kAhead > 1 that many packs' elements, read together, for a sum that does not ask where they stand.
template <int kAhead, class T, class F>
__device__ __forceinline__ void each_in_row(const T* row, int64_t count, const F& f) {
  constexpr int N = kPack<T>;
  const Run run = run_of(row, count);
  // What stands before the first pack and after the last: less than two packs.
  const int64_t thread = threadIdx.x, edge = thread < run.head ? thread : thread + run.packs * N;
  if (edge < count && thread < 2 * N) {
    const float x[1] = {widen(row[edge])};
    f(edge, x);
  }
  const auto* packs = reinterpret_cast<const Pack<T, N>*>(row + run.head);
  int64_t pack = thread;
  if constexpr (kAhead > 1) {
    for (; pack + (kAhead - 1) * kRowThreads < run.packs; pack += kAhead * kRowThreads) {
      Pack<T, N> loaded[kAhead];
      float x[kAhead * N];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) loaded[k] = packs[pack + k * kRowThreads];
#pragma unroll
      for (int i = 0; i < kAhead * N; ++i) x[i] = widen(loaded[i / N].v[i % N]);
      f(run.head + pack * N, x);
    }
  }
#pragma unroll 2
  for (; pack < run.packs; pack += kRowThreads) {
    float x[N];
    load(row + run.head + pack * N, x);
    f(run.head + pack * N, x);
  }
}

}  // namespace prun_cuda
