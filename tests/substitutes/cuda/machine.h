// What one CUDA call may ask of the others' state: the device that is current, the last error.
#pragma once
#include "substitute.h"

namespace substitute {

// Remembers an error for cudaGetLastError, as every call of the runtime does. "Not ready" is remembered, too.
cudaError_t result(cudaError_t error);
int current_device();
size_t memory_bytes();       // of each device
int capability();            // 90
size_t most_shared_bytes();  // that a block may opt in to

// A 64-bit hash; random numbers of the substitute are hashes of a seed and a counter.
inline uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
// The next number of the process: PRUN_SUBSTITUTE_SEED sets where they begin.
uint64_t random_number();

}  // namespace substitute
