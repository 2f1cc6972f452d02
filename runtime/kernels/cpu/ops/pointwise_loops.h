// The functions of pointwise programs as vectorized loops over tiles, for the interpreters of pointwise and
// pointwise_update.
#pragma once
#include <cstdint>

#include "prun/sdk/pointwise.h"

namespace prun::cpu {

inline constexpr int64_t kPointwiseTile = 512;                   // floats, which fit in the L1 cache
inline constexpr int64_t kPointwiseBlock = 32 * kPointwiseTile;  // elements that a thread takes at once

// Computes y[i] of n elements; y may be an operand. y: floats, or bf16 if the loop computes the result of a bf16
// program.
using PointwiseLoop = void (*)(const float* a, const float* b, const float* c, void* y, int64_t n);
// `rough`: the tensors are bf16, so that a sigmoid within 3e-6 is precise enough. Y: type of the loop's results.
template <class Y>
PointwiseLoop pointwise_loop(sdk::Pointwise code, bool rough);

}  // namespace prun::cpu
