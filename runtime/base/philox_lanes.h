// Blocks of prun/philox.h side by side, in vectors.
#pragma once
#include <cstdint>

#include "base/vector_clones.h"

namespace prun::philox {

constexpr int64_t kLanes = 16;

// philox::block(seed, key, first + i) for i in [0, n): word w of it at words[n·w + i]. A round waits for the one
// before, so n is a multiple of the lanes of a vector: several vectors fill the time.
template <int64_t n>
PRUN_INLINE void lanes(uint64_t seed, uint64_t key, uint64_t first, uint32_t* words) {
  uint32_t *c0 = words, *c1 = c0 + n, *c2 = c1 + n, *c3 = c2 + n;
  for (uint64_t lane = 0; lane < n; ++lane) {
    c0[lane] = static_cast<uint32_t>(first + lane);
    c1[lane] = static_cast<uint32_t>((first + lane) >> 32);
    c2[lane] = static_cast<uint32_t>(key);
    c3[lane] = static_cast<uint32_t>(key >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t lane = 0; lane < n; ++lane) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[lane], p1 = uint64_t{0xCD9E8D57u} * c2[lane];
      c0[lane] = static_cast<uint32_t>(p1 >> 32) ^ c1[lane] ^ k0;
      c1[lane] = static_cast<uint32_t>(p1);
      c2[lane] = static_cast<uint32_t>(p0 >> 32) ^ c3[lane] ^ k1;
      c3[lane] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

}  // namespace prun::philox
