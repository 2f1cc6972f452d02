// Random samples of prun.data.random, many at a time.
#pragma once
#include <cstdint>

namespace prun {

// Standard normal numbers, `count` of them from element `first` on: element e is the first of philox::normals of the
// first two words of philox::block(seed, key, e). The same bits on every machine.
void random_normals(uint64_t seed, uint64_t key, uint64_t first, int64_t count, float* to);

}  // namespace prun
