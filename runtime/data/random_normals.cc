// Surprising fact: this file is compiled without fused multiply-adds (see prun/philox.h), and vectorized nevertheless.
#include "base/random_words.h"
#include "base/vector_levels.h"
#include "data/sample_order.h"
#include "prun/philox.h"

namespace prun {
namespace {

struct Normals {
  uint64_t seed, key, first;
  int64_t count;
  float* to;

  // This is a struct and not a lambda, because GCC 12 ignores the pragma in a lambda.
  template <int lanes>
  PRUN_INLINE void operator()() const {
    constexpr int64_t kBlocks = kRandomGroups * kRandomBlocks;
    const RoundKeys keys(seed);
    alignas(64) uint32_t words[4 * kBlocks];
    float numbers[kBlocks];
    for (int64_t at = 0; at < count; at += kBlocks) {
      random_words<lanes>(keys, key, first + static_cast<uint64_t>(at), words);
      float* out = count - at < kBlocks ? numbers : to + at;
      for (int64_t group = 0; group < kRandomGroups; ++group) {
        const uint32_t *a = words + group * 4 * kRandomBlocks, *b = a + kRandomBlocks;
#pragma omp simd
        for (int64_t i = 0; i < kRandomBlocks; ++i) out[group * kRandomBlocks + i] = philox::normals(a[i], b[i]).first;
      }
      if (out == numbers)
        for (int64_t i = 0; i < count - at; ++i) to[at + i] = numbers[i];
    }
  }
};

}  // namespace

void random_normals(uint64_t seed, uint64_t key, uint64_t first, int64_t count, float* to) {
  with_longest_lanes(Normals{seed, key, first, count, to});
}

}  // namespace prun
