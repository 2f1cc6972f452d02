// Numbers for comparing algorithms for a product.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace prun::cuda {

// A matrix of `dtype` [rows, columns], random numbers in [-1, 1) of many magnitudes, `batch` of them. Mirrored: along
// k, which are its rows or else its columns, the second half mirrors the first, in B with the other sign. So the
// product's sums are 0 but for their rounding errors, and an algorithm that adds in another order gives other bits,
// though they be rounded to bf16. Not mirrored: sums of all sizes, which show what is computed of them.
struct TrialMatrix {
  int64_t batch, rows, columns;
  bool k_is_rows, is_b, mirrored;
};
void fill(cudaStream_t stream, const TrialMatrix& matrix, int dtype, void* data);

}  // namespace prun::cuda
