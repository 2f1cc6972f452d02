// How the op route writes the choices of tokens, for the kernels of all devices.
#pragma once
#include <cstdint>
#include <limits>

#if defined(__CUDACC__)
#define PRUN_ROUTING_INLINE __host__ __device__ inline
#else
#define PRUN_ROUTING_INLINE inline
#endif

namespace prun::sdk {

// A choice of a token that counts for nothing: padding, or a document of one token.
inline constexpr int32_t kUnrouted = std::numeric_limits<int32_t>::min();
// Added to the sum that divides sigmoid scores, as in transformers.
inline constexpr float kLeastScore = 1e-20f;

// Returns the slot of the `rank`-th choice of an expert with `capacity` slots; below 0 if it has none.
PRUN_ROUTING_INLINE int32_t slot_of(int32_t expert, int64_t rank, int64_t capacity) {
  return rank < capacity ? static_cast<int32_t>(expert * capacity + rank) : -1 - expert;
}
// Returns the expert that a choice is of, unless it is kUnrouted.
PRUN_ROUTING_INLINE int32_t expert_of(int32_t slot, int64_t capacity) {
  return slot >= 0 ? static_cast<int32_t>(slot / capacity) : -1 - slot;
}
// Whether a token with this run of its document in the stream counts; null = all do.
PRUN_ROUTING_INLINE bool counts(const int32_t* run) { return run == nullptr || run[1] - run[0] > 1; }

}  // namespace prun::sdk
