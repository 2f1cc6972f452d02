// Vectorized prun/philox.h: each block's word is the low half of a 64-bit lane, because vpmuludq multiplies the low
// halves of 64-bit lanes and keeps the full result.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/vector_asm.h"
#include "base/vector_clones.h"

namespace prun {

template <int lanes>
struct LongLanes {
  typedef uint64_t Longs __attribute__((vector_size(4 * lanes)));
  typedef uint32_t Words __attribute__((vector_size(4 * lanes)));
};
template <int lanes>
using Longs = typename LongLanes<lanes>::Longs;

// Multiplies the low halves.
template <int lanes>
PRUN_INLINE Longs<lanes> word_product(const Longs<lanes>& a, const Longs<lanes>& b) {
  Longs<lanes> found;
  if constexpr (kVectorAsm && lanes > 4)
    asm("vpmuludq %2, %1, %0" : "=v"(found) : "v"(a), "v"(b));
  else
    found = (a & 0xffffffffu) * b;
  return found;
}

// Broadcasts a word. Without it GCC 12 adds a scalar to 16 floats with one instruction per lane.
template <int lanes>
PRUN_INLINE Longs<lanes> all_lanes(uint64_t word) {
  Longs<lanes> all;
  if constexpr (kVectorAsm && lanes > 4)
    asm("vpbroadcastq %1, %0" : "=v"(all) : "m"(word));
  else
    all = Longs<lanes>{} + word;
  return all;
}

// Returns the low halves of a, then of b.
template <int lanes, size_t... i>
PRUN_INLINE typename LongLanes<lanes>::Words lower_halves(const Longs<lanes>& a, const Longs<lanes>& b,
                                                          std::index_sequence<i...>) {
  using Words = typename LongLanes<lanes>::Words;
  return __builtin_shufflevector(__builtin_bit_cast(Words, a), __builtin_bit_cast(Words, b),
                                 static_cast<int>(2 * i)...);
}

// Round keys of `seed`.
struct RoundKeys {
  uint64_t first[10], second[10];
  explicit RoundKeys(uint64_t seed) {
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
      first[round] = k0, second[round] = k1;
  }
};

inline constexpr uint64_t kCounting[8] = {0, 1, 2, 3, 4, 5, 6, 7};
inline constexpr int64_t kRandomBlocks = 16;  // blocks per group, which stores all first words, then all second ones
// Groups in flight: each round depends on the previous one, so as many vectors as there are registers hide its latency.
inline constexpr int64_t kRandomGroups = 2;

// GCC 12 reports vectors of 64-bit words as uninitialized although they are set.
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
// Computes philox::block(seed, key, first + i) for i in [0, 32); stores word w at words[64·⌊i/16⌋ + 16·w + i mod 16].
template <int lanes>
PRUN_INLINE void random_words(const RoundKeys& keys, uint64_t key, uint64_t first, uint32_t* words) {
  using V = Longs<lanes>;
  constexpr int64_t kBlocks = lanes / 2, kVectors = lanes == 16 ? 4 : 2;  // blocks per vector; vectors in flight
  const V m0 = V{} + 0xD2511F53u, m1 = V{} + 0xCD9E8D57u;
  const V lower = all_lanes<lanes>(key), upper = all_lanes<lanes>(key >> 32);
  V counting;
  std::memcpy(&counting, kCounting, sizeof counting);
  for (int64_t at = 0; at < kRandomGroups * kRandomBlocks; at += kVectors * kBlocks) {
    V c[kVectors][4];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      c[v][0] = counting + (first + static_cast<uint64_t>(at + v * kBlocks));
      c[v][1] = c[v][0] >> 32;
      c[v][2] = lower;
      c[v][3] = upper;
    }
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) {
        V(&x)[4] = c[v];
        const V p0 = word_product<lanes>(x[0], m0), p1 = word_product<lanes>(x[2], m1);
        x[0] = (p1 >> 32) ^ (x[1] ^ keys.first[round]);
        x[1] = p1;
        x[2] = (p0 >> 32) ^ (x[3] ^ keys.second[round]);
        x[3] = p0;
      }
    }
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVectors; v += 2) {
      const int64_t block = at + v * kBlocks;
      uint32_t* to = words + block / kRandomBlocks * 4 * kRandomBlocks + block % kRandomBlocks;
#pragma GCC unroll 4
      for (int w = 0; w < 4; ++w) {
        const auto both = lower_halves<lanes>(c[v][w], c[v + 1][w], std::make_index_sequence<lanes>());
        std::memcpy(to + w * kRandomBlocks, &both, sizeof both);
      }
    }
  }
}
#pragma GCC diagnostic pop

}  // namespace prun
