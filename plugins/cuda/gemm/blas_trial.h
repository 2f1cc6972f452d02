// Numbers for comparing algorithms of a GEMM.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace prun::cuda {

// Describes `batch` matrices [rows, columns] of random numbers in [-1, 1) of many magnitudes. In a mirrored matrix the
// second half of k (its rows or its columns) mirrors the first, in B with the opposite sign. The GEMM's accumulators
// then end at 0 plus rounding errors, so that an algorithm with another order of addition gives another result, even
// after rounding to bf16. A matrix that is not mirrored gives sums of all magnitudes, which check column sums.
struct TrialMatrix {
  int64_t batch, rows, columns;
  bool k_is_rows, is_b, mirrored;
};
void fill(cudaStream_t stream, const TrialMatrix& matrix, int dtype, void* data);

}  // namespace prun::cuda
