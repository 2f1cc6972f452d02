// Loops over a kernel's cores. With one thread OpenMP is not touched at all, so a rank may be forked from a process
// that has run kernels on one thread.
//
// The limits of partial sums must depend on sizes only, never on `threads`, so that results are bitwise identical for
// any number of threads.
#pragma once
#include <algorithm>
#include <cstdint>

namespace prun::cpu {

// Calls f(i, thread) for every i in [0, n).
template <class F>
void parallel_for(int threads, int64_t n, const F& f) {
  if (threads <= 1 || n <= 1) {
    for (int64_t i = 0; i < n; ++i) f(i, 0);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t thread = 0; thread < threads; ++thread) {
    const int64_t begin = n * thread / threads, end = n * (thread + 1) / threads;
    for (int64_t i = begin; i < end; ++i) f(i, static_cast<int>(thread));
  }
}

// Calls f(begin, end) with a range of [0, n) for each thread. The rows must not depend on each other.
template <class F>
void parallel_rows(int threads, int64_t n, const F& f) {
  parallel_for(threads, threads, [&](int64_t i, int) { f(n * i / threads, n * (i + 1) / threads); });
}

// Chunks of rows, divided by their number alone, for reductions over rows: each chunk has a partial sum of its own, and
// partial sums are added in order.
struct RowChunks {
  int64_t rows, step, count;
  explicit RowChunks(int64_t n) : rows(n), step(std::max<int64_t>(64, (n + 31) / 32)), count((n + step - 1) / step) {}
  int64_t first(int64_t i) const { return i * step; }
  int64_t size(int64_t i) const { return std::min(step, rows - i * step); }
};

// Calls f(begin, end) for ranges of [0, n), for element-wise work; small arrays run on one core.
template <class F>
void parallel_ranges(int threads, int64_t n, const F& f) {
  constexpr int64_t kSmall = 16384;
  if (threads <= 1 || n < kSmall) return f(int64_t{0}, n);
  const int64_t piece = ((n + threads - 1) / threads + 63) / 64 * 64;
  parallel_for(threads, threads, [&](int64_t i, int) {
    const int64_t begin = std::min(n, i * piece), end = std::min(n, begin + piece);
    if (begin < end) f(begin, end);
  });
}

// Returns the sum of f(begin, end) over chunks of [0, n), each a double; chunks depend on n alone and are added in
// order.
template <class F>
double parallel_sum(int threads, int64_t n, const F& f) {
  constexpr int64_t kChunks = 256, kSmallest = 4096;
  const int64_t chunk = std::max(kSmallest, ((n + kChunks - 1) / kChunks + 63) / 64 * 64);
  const int64_t chunks = (n + chunk - 1) / chunk;
  double partial[kChunks] = {};
  parallel_for(threads, chunks, [&](int64_t i, int) { partial[i] = f(i * chunk, std::min(n, (i + 1) * chunk)); });
  double sum = 0;
  for (int64_t i = 0; i < chunks; ++i) sum += partial[i];
  return sum;
}

}  // namespace prun::cpu
