// The hyperbolic tangent of a float or of a vector of them.
#pragma once
#include "kernels/cpu/vector_math.h"

namespace prun::cpu {

// Uses the Taylor series near 0, where 1 − e^(−2|x|) cancels.
template <class V>
PRUN_INLINE V tanh_f32(V x) {
  const V magnitude = x < 0 ? -x : x, square = x * x;
  const V series =
      1.0f + square * (-1.0f / 3 + square * (2.0f / 15 + square * (-17.0f / 315 + square * (62.0f / 2835))));
  const V t = exp_f32(-2.0f * magnitude), large = (1.0f - t) / (1.0f + t);
  return magnitude < 0.25f ? x * series : (x < 0 ? -large : large);  // NaNs propagate
}

}  // namespace prun::cpu
