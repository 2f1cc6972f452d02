// Surprising fact: an error of the device may be returned by any later call. Its message then names an unrelated call,
// so it adds how to find the cause.
#include "failure.h"

#include <fmt/format.h>

namespace prun::cuda {
namespace {

// These errors destroy the context; every call that follows returns the same one.
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
  cudaGetLastError();  // clears it, or a library that reads the last error would take it for its own
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
