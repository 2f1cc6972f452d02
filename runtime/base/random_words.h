// Blocks of prun/philox.h side by side, in vectors: each block's word is the lower half of a 64-bit lane, where the
// CPU's product of 32-bit words takes its factors and leaves both halves of the result.
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

// Of the lower halves.
template <int lanes>
PRUN_INLINE Longs<lanes> word_product(const Longs<lanes>& a, const Longs<lanes>& b) {
  Longs<lanes> found;
  if constexpr (kVectorAsm && lanes > 4)
    asm("vpmuludq %2, %1, %0" : "=v"(found) : "v"(a), "v"(b));
  else
    found = (a & 0xffffffffu) * b;
  return found;
}

// One word in all. Of a sum with it GCC 12 makes an instruction for each lane of 16 floats.
template <int lanes>
PRUN_INLINE Longs<lanes> all_lanes(uint64_t word) {
  Longs<lanes> all;
  if constexpr (kVectorAsm && lanes > 4)
    asm("vpbroadcastq %1, %0" : "=v"(all) : "m"(word));
  else
    all = Longs<lanes>{} + word;
  return all;
}

// The lower halves of a, then of b.
template <int lanes, size_t... i>
PRUN_INLINE typename LongLanes<lanes>::Words lower_halves(const Longs<lanes>& a, const Longs<lanes>& b,
                                                          std::index_sequence<i...>) {
  using Words = typename LongLanes<lanes>::Words;
  return __builtin_shufflevector(__builtin_bit_cast(Words, a), __builtin_bit_cast(Words, b),
                                 static_cast<int>(2 * i)...);
}

// What the rounds of a sequence under `seed` begin with.
struct RoundKeys {
  uint64_t first[10], second[10];
  explicit RoundKeys(uint64_t seed) {
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
      first[round] = k0, second[round] = k1;
  }
};

inline constexpr uint64_t kCounting[8] = {0, 1, 2, 3, 4, 5, 6, 7};
inline constexpr int64_t kRandomBlocks = 16;  // of a group, whose first words lie together, then its second ones
// At a time: a round waits for the one before, and as many vectors as there are registers for fill the time.
inline constexpr int64_t kRandomGroups = 2;

// GCC 12 takes vectors of 64-bit words for unset where they are set.
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
// philox::block(seed, key, first + i) for i in [0, 32): word w of it at words[64·⌊i/16⌋ + 16·w + i mod 16].
template <int lanes>
PRUN_INLINE void random_words(const RoundKeys& keys, uint64_t key, uint64_t first, uint32_t* words) {
  using V = Longs<lanes>;
  constexpr int64_t kBlocks = lanes / 2, kVectors = lanes == 16 ? 4 : 2;  // of a vector; at a time
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
