// What embedding_grad and positions_grad share: the gradient of a table of positions.
#pragma once
#include "op.h"

namespace prun::cuda {

// Enqueues dtable[p] = Σ over the samples, in their order, of dy's token at position p; 0 where this rank has none.
// dy is [batch, length, width], dtable [rows, width].
template <class T>
void sum_over_samples(const T* dy, float* dtable, int64_t batch, int64_t rows, int64_t width, const TokenPositions& at,
                      cudaStream_t stream);

}  // namespace prun::cuda
