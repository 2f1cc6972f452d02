// The end of every sum that many blocks begin: each block leaves its part in the op's workspace, and the parts are
// added in an order that only their number decides.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace prun::cuda {

// Writes scale·Σ parts to *sum. The sum is computed in f64 and rounded at most once.
void finish_sum(cudaStream_t stream, const double* parts, int64_t count, double scale, float* sum);
void finish_sum(cudaStream_t stream, const double* parts, int64_t count, double scale, double* sum);

// Column sums of parts [count][width], or [count][2][width] where there is a second result. `added` [width] is added to
// the first result unless it is null; it may be that result.
void finish_columns(cudaStream_t stream, const float* parts, int64_t count, int64_t width, float* sums,
                    float* second = nullptr, const float* added = nullptr);

// bias.cu: sums over rows, for every op that has a bias' gradient.
// sums[j] = Σ over rows of x[row][j], plus added[j] unless it is null; f32 from f32 or bf16; the same bits in every
// run. `workspace` has column_sums_bytes, whatever the dtype. `added` may be `sums`.
void column_sums(cudaStream_t stream, const void* x, int dtype, int64_t rows, int64_t width, float* workspace,
                 float* sums, const float* added = nullptr);
size_t column_sums_bytes(int64_t rows, int64_t width);

}  // namespace prun::cuda
