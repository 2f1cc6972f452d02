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

// Several instructions in one loop, whose results between them reach no memory: those of gates and their derivatives.
enum class PointwiseChain : uint8_t {
  sigmoid_of_product,  // sigmoid(a·b)
  gate,                // c·sigmoid(a·b)
  product,             // (a·b)·c
  sum,                 // (a + b)·c
  difference           // (a - b)·c
};
template <class Y>
PointwiseLoop pointwise_chain(PointwiseChain chain, bool rough);

// Computes y = x·sigmoid(x·b[0]) of n elements, such as a gelu or silu of a plan's own, without a tile. y may be x.
template <class T>
void gate_of_input(const T* x, const float* b, T* y, int64_t n);

}  // namespace prun::cpu
