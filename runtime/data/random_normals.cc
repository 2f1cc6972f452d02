// Surprising fact: compiled without fused multiply-adds (see prun/philox.h), and vectorized in spite of that.
#include "data/random_normals.h"

#include "base/philox_lanes.h"
#include "prun/philox.h"

namespace prun {

PRUN_CLONES void random_normals(uint64_t seed, uint64_t key, uint64_t first, int64_t count, float* to) {
  constexpr int64_t kGroup = 2 * philox::kLanes;
  uint32_t words[4 * kGroup];
  float numbers[kGroup];
  for (int64_t at = 0; at < count; at += kGroup) {
    philox::lanes<kGroup>(seed, key, first + static_cast<uint64_t>(at), words);
    float* out = count - at < kGroup ? numbers : to + at;
#pragma omp simd
    for (int64_t i = 0; i < kGroup; ++i) out[i] = philox::normals(words[i], words[kGroup + i]).first;
    if (out == numbers)
      for (int64_t i = 0; i < count - at; ++i) to[at + i] = numbers[i];
  }
}

}  // namespace prun
