// The scores of the op attend in bf16, in the layout of tensor cores, for its forward and backward kernels.
#pragma once
#include "attend_rules.cuh"
#include "attention_tiles.cuh"

namespace prun::cuda {

inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Returns tanh(x) to about 2^-23, absolute: far less than the rounding of scores from bf16.
__device__ inline float tanh_approximate(float x) { return 1 - 2 / (1 + exp2_approximate(2 * kLog2e * x)); }

// The factors of a score: x = q·k or, with a cap, x = tanh(inner·q·k); the score is natural·x, in powers of two
// natural·log2(e)·x.
struct ScoreScale {
  float inner, natural;
  __device__ explicit ScoreScale(const AttendSizes& s)
      : inner(s.cap > 0 ? s.scale / s.cap : 0.0f), natural(s.cap > 0 ? s.cap : s.scale) {}
};

// Stores two columns of a row of `size` columns, of which the first is `column`.
__device__ inline void store_pair(bf16* to, int column, int size, bool pairs, float first, float second) {
  if (column >= size) return;
  if (pairs) {
    *reinterpret_cast<__nv_bfloat162*>(to + column) = __floats2bfloat162_rn(first, second);
  } else {
    to[column] = __float2bfloat16(first);
    if (column + 1 < size) to[column + 1] = __float2bfloat16(second);
  }
}

}  // namespace prun::cuda
