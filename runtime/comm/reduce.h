// Reductions of buffers (sum, product, minimum, maximum, average), with the kernels of plugins (prun/sdk/reduce.h).
#pragma once
#include "ir/types.h"
#include "prun/sdk/reduce.h"

namespace prun {

// Computes out[i] = ((in[0][i] op in[1][i]) op in[2][i]) ...; avg then divides by `divisor`. `out` may be an input.
inline void reduce(Dtype dtype, RedOp op, const void* const* inputs, int n, void* out, int64_t count, int divisor) {
  sdk::reduce({static_cast<int>(dtype), static_cast<int>(op), divisor}, inputs, n, &out, 1, count);
}

}  // namespace prun
