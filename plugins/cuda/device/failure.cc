// Surprising fact: any later call may return an error of the device. Its message then names an unrelated call, so the
// message adds how to find the cause.
#include "failure.h"

#include <fmt/format.h>

namespace prun::cuda {
namespace {

// Returns whether earlier work caused the error. These errors destroy the context; every call that follows returns the
// same error.
bool came_from_earlier_work(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, because a library that reads the last error would take it for its own
  std::string message = fmt::format("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error));
  if (came_from_earlier_work(error))
    message +=
        "; the cause is work enqueued before: with CUDA_LAUNCH_BLOCKING=1 the op that fails is the one that is named";
  throw Failure(error == cudaErrorMemoryAllocation ? PRUN_ENOMEM : PRUN_ESYSTEM, std::move(message));
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Failure(status == CUBLAS_STATUS_ALLOC_FAILED ? PRUN_ENOMEM : PRUN_ESYSTEM,
                fmt::format("{}: {}", call, cublasLtGetStatusName(status)));
}

}  // namespace prun::cuda
