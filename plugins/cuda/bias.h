// Sums over rows, for every op that has a bias' gradient.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace prun::cuda {

// sums[j] = Σ over rows of x[row][j], plus added[j] unless it is null; f32 from f32 or bf16; the same bits in every
// run. `workspace` has column_sums_bytes, whatever the dtype. `added` may be `sums`.
void column_sums(cudaStream_t stream, const void* x, int dtype, int64_t rows, int64_t width, float* workspace,
                 float* sums, const float* added = nullptr);
size_t column_sums_bytes(int64_t rows, int64_t width);

}  // namespace prun::cuda
