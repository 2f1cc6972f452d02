// Sums, products, minima, maxima and averages of buffers, element by element.
//
// bf16 and f16 are computed in f32 and rounded once; that is why a reduction takes all its inputs at a time.
#pragma once
#include <cstdint>

#include "ir/types.h"

namespace prun {

// out[i] = ((in[0][i] op in[1][i]) op in[2][i]) ...; avg also divides by `divisor`: times 1/divisor in the type that is
// summed in, for integers the wrapping 64-bit sum divided towards zero. `out` may be one of the inputs. Any thread.
void reduce(Dtype dtype, RedOp op, const void* const* inputs, int n, void* out, int64_t count, int divisor);

}  // namespace prun
