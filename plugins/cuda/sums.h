// The end of every sum that many blocks begin: each leaves an f64 in the op's workspace, and these are added in an
// order that only their number decides.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace prun_cuda {

// *sum = scale·Σ parts, rounded once.
void finish_sum(cudaStream_t stream, const double* parts, int64_t count, double scale, float* sum);

}  // namespace prun_cuda
