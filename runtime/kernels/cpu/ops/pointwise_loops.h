// The functions of pointwise programs as vectorized loops over tiles, for the interpreters of pointwise and
// pointwise_update.
#pragma once
#include <cstdint>

#include "prun/sdk/pointwise.h"

namespace prun::cpu {

inline constexpr int64_t kPointwiseTile = 512;                   // floats, which fit in the L1 cache
inline constexpr int64_t kPointwiseBlock = 32 * kPointwiseTile;  // elements that a thread takes at once

// Computes y[i] of n elements; y may be an operand.
using PointwiseLoop = void (*)(const float* a, const float* b, const float* c, float* y, int64_t n);
PointwiseLoop pointwise_loop(sdk::Pointwise code);

}  // namespace prun::cpu
