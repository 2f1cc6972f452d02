// Failures of CUDA's calls.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "prun/device.h"
#include "prun/sdk/failure.h"

namespace prun::cuda {

using sdk::Failure;

// Throws for an error of a CUDA call, named by `call`. Out of memory is PRUN_ENOMEM, all else PRUN_ESYSTEM.
void check(cudaError_t error, const char* call);
void check(cublasStatus_t status, const char* call);

}  // namespace prun::cuda
