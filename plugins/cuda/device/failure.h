// Failures of CUDA calls.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "prun/device.h"
#include "prun/sdk/failure.h"

namespace prun::cuda {

using sdk::Failure;

// Throws Failure for an error of the CUDA call `call`: PRUN_ENOMEM if out of memory, otherwise PRUN_ESYSTEM.
void check(cudaError_t error, const char* call);
void check(cublasStatus_t status, const char* call);

}  // namespace prun::cuda
