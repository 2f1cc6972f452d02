#include "context.h"

#include <fmt/format.h>

#include "hardware.h"
#include "probe.h"

namespace prun_cuda {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

Context::Context(const prun_device_params& params)
    : options_(parse_options(params.options != nullptr ? params.options : "")), index_(params.index), log_(params.log) {
  int devices = 0;
  if (const std::string problem = find_devices(devices); !problem.empty()) throw Failure(PRUN_ENOTSUP, problem);
  if (index_ < 0 || index_ >= devices) throw Failure(PRUN_ENOTSUP, no_such_device(index_, devices));
  use();
  capability_ =
      10 * attribute(cudaDevAttrComputeCapabilityMajor, index_) + attribute(cudaDevAttrComputeCapabilityMinor, index_);
  multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount, index_);
  shared_bytes_ = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index_);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
  name_ = properties.name;
  if (const std::string why = why_unusable(capability_); !why.empty())
    throw Failure(PRUN_ENOTSUP, fmt::format("GPU {} ({}) cannot be used: {}", index_, name_, why));
  check(cublasLtCreate(&cublas_), "cublasLtCreate");
}

Context::~Context() { cublasLtDestroy(cublas_); }

cudnnContext* Context::cudnn() { return cudnn_; }

void Context::log(int level, const std::string& text) const {
  if (log_ != nullptr) log_(level, text.c_str());
}

}  // namespace prun_cuda
