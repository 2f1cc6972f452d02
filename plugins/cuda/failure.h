// What a function of the plugin throws; plugin.cc turns it into a status and a message.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <exception>
#include <string>
#include <utility>

#include "prun/device.h"

namespace prun_cuda {

class Failure : public std::exception {
 public:
  Failure(prun_status status, std::string message) : status_(status), message_(std::move(message)) {}
  prun_status status() const { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  prun_status status_;
  std::string message_;
};

// Throws for an error of a CUDA call, named by `call`. Out of memory is PRUN_ENOMEM, all else PRUN_ESYSTEM.
void check(cudaError_t error, const char* call);
void check(cublasStatus_t status, const char* call);

}  // namespace prun_cuda
