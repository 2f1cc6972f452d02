// The second stage of reductions over many blocks: each block stores its partial sum in the op's workspace, and the
// partial sums are added in an order that depends on their number alone.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace prun::cuda {

// Writes scale·Σ parts to *sum. Adds in f64 and rounds at most once.
void finish_sum(cudaStream_t stream, const double* parts, int64_t count, double scale, float* sum);
void finish_sum(cudaStream_t stream, const double* parts, int64_t count, double scale, double* sum);

// Computes the column sums of parts [count][width]; with a second result, of parts [count][2][width]. `added` [width]
// is added to the first result unless it is null; it may be that result.
void finish_columns(cudaStream_t stream, const float* parts, int64_t count, int64_t width, float* sums,
                    float* second = nullptr, const float* added = nullptr);

// bias.cu: sums over rows, for every op with a bias gradient. Computes sums[j] = Σ over rows of x[row][j], plus
// added[j] unless `added` is null. Sums are f32, x is f32 or bf16, and results are bitwise identical in every run.
// `workspace` has column_sums_bytes, for any dtype. `added` may be `sums`.
void column_sums(cudaStream_t stream, const void* x, int dtype, int64_t rows, int64_t width, float* workspace,
                 float* sums, const float* added = nullptr);
size_t column_sums_bytes(int64_t rows, int64_t width);

}  // namespace prun::cuda
