// Rows of logits: a rank's columns, and how a block reads a row once, with 16-byte accesses, from any address (a
// vocabulary of 50257 columns aligns every row differently).
#pragma once
#include <algorithm>

#include "block.cuh"

namespace prun::cuda {

inline constexpr int kRowThreads = 512;  // maximum of row_threads: threads of the block that has a wide row
inline constexpr int kRowBlocks = 2;     // lower bound of such blocks resident on a multiprocessor
inline constexpr int kRowPacks = 4;      // packs that a thread of such a block loads before it computes

// A target that contributes nothing to the loss (runtime/ir/ops/README.md).
inline constexpr int32_t kIgnoredTarget = -1;

// All of the vocabulary, or a run of it if it is split over an axis; the last columns of a run may be padding.
struct Columns {
  int64_t first, count, valid;  // in the rank's `count` columns from `first` on, only `valid` are in the vocabulary
  int64_t vocab;

  // Returns the column of a target, or -1 if it is another rank's. Targets outside the vocabulary are clamped.
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

// The terms of a row's loss besides its log-sum-exp.
struct Terms {
  float smoothing;      // weight of the mean logit; the target's logit has 1 − smoothing
  float scale;          // factor of every row
  const float* shares;  // factors of the rows; null = 1

  __device__ __forceinline__ float share(int64_t row) const { return shares == nullptr ? 1.0f : shares[row]; }
  __device__ __forceinline__ float factor(int64_t row, int32_t target) const {
    return target == kIgnoredTarget ? 0.0f : scale * share(row);
  }
  // Returns the part of the one-hot that each column has.
  __device__ __forceinline__ float others(const Columns& columns) const {
    return smoothing / static_cast<float>(columns.vocab);
  }
};

// `shares`: index of the optional input.
inline Terms terms_of(const OpView& view, size_t shares, int64_t rows) {
  Terms terms = {static_cast<float>(view.number("label_smoothing", 0)), static_cast<float>(view.number("scale", 1)),
                 nullptr};
  if (view.reads() > shares) {
    view.expect_count(view.read(shares), rows);
    terms.shares = view.in<float>(shares);
  }
  return terms;
}

// Returns the threads of a row's block. They depend on the width alone, and so does the order of the block's sums.
inline unsigned row_threads(const Columns& columns) { return columns.count > 4096 ? kRowThreads : 128; }

// Calls f(x) for the thread's elements of the row; x is an array of some of them as f32: one, a pack, or kRowPacks
// packs that are loaded together.
template <class T, class F>
__device__ __forceinline__ void each_in_row(const T* row, int64_t count, const F& f) {
  constexpr int N = kPack<T>;
  const Run run = run_of(row, count);
  const int threads = static_cast<int>(blockDim.x);
  // The elements before the first pack and after the last: less than two packs.
  const int64_t thread = threadIdx.x, edge = thread < run.head ? thread : thread + run.packs * N;
  if (edge < count && thread < 2 * N) {
    const float x[1] = {widen(row[edge])};
    f(x);
  }
  const auto* packs = reinterpret_cast<const Pack<T, N>*>(row + run.head);
  int64_t pack = thread;
  for (; pack + (kRowPacks - 1) * threads < run.packs; pack += kRowPacks * threads) {
    Pack<T, N> loaded[kRowPacks];
    float x[kRowPacks * N];
#pragma unroll
    for (int k = 0; k < kRowPacks; ++k) loaded[k] = packs[pack + k * threads];
#pragma unroll
    for (int i = 0; i < kRowPacks * N; ++i) x[i] = loaded[i / N].wide(i % N);
    f(x);
  }
#pragma unroll 1
  for (; pack < run.packs; pack += threads) {
    float x[N];
    load(row + run.head + pack * N, x);
    f(x);
  }
}

// The running maximum of a thread's logits, and the sum of exponentials relative to it.
struct Normalizer {
  static constexpr float kNothing = -std::numeric_limits<float>::infinity();
  float top = kNothing, sum = 0;  // Σ exp(x − top)

  // If all logits are −∞, so is the maximum, and subtracting it would give NaN.
  static __device__ __forceinline__ float shift(float top) { return top == kNothing ? 0.0f : top; }

  template <int N>
  __device__ __forceinline__ void add(const float (&x)[N]) {
    float largest = x[0], sums[2] = {};
#pragma unroll
    for (int i = 1; i < N; ++i) largest = fmaxf(largest, x[i]);
    if (largest > top) {
      sum *= __expf(top - largest);
      top = largest;
    }
    const float from = shift(top);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i % 2] += __expf(x[i] - from);
    sum += sums[0] + sums[1];
  }
};

// Returns this rank's part of the smoothed logit of a row's target, in every thread of the row's block.
template <class T>
__device__ __forceinline__ float smoothed_logit(const T* from, int32_t target, const Columns& columns,
                                                const Terms& terms) {
  const int64_t at = columns.find(target);
  const float hit = at < 0 ? 0.0f : widen(from[at]);
  if (terms.smoothing == 0) return hit;
  float sum = 0;
  each_in_row(from, columns.valid, [&](const auto& x) {
#pragma unroll
    for (const float logit : x) sum += logit;
  });
  const float mean = block_sum(sum) / static_cast<float>(columns.vocab);
  return hit + terms.smoothing * (mean - hit);
}

}  // namespace prun::cuda
