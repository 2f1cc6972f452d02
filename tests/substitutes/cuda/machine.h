// The shared state of CUDA calls: the current device, the last error.
#pragma once
#include "substitute.h"

namespace substitute {

// Records an error for cudaGetLastError, as every call of the runtime does, including "not ready". Returns it.
cudaError_t result(cudaError_t error);
int current_device();
size_t memory_bytes();       // of each device
int capability();            // 90
size_t most_shared_bytes();  // maximum that a block may opt in to

// A 64-bit hash; random numbers of the substitute are hashes of a seed and a counter.
inline uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
// Returns the next random number of the process; PRUN_SUBSTITUTE_SEED sets the start.
uint64_t random_number();

}  // namespace substitute
