#include "context.h"

#include <fmt/format.h>
#ifdef PRUN_CUDA_CUDNN
#include <cudnn_graph.h>
#endif

#include "hardware.h"
#include "probe.h"

namespace prun::cuda {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

Context::Context(const prun_device_params& params)
    : options_(parse_options(params.options)), index_(params.index), log_(params.log) {
  int devices = 0;
  if (const std::string problem = find_devices(devices); !problem.empty()) throw Failure(PRUN_ENOTSUP, problem);
  if (index_ < 0 || index_ >= devices) throw Failure(PRUN_ENOTSUP, no_such_device(index_, devices));
  use();
  capability_ =
      10 * attribute(cudaDevAttrComputeCapabilityMajor, index_) + attribute(cudaDevAttrComputeCapabilityMinor, index_);
  multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount, index_);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
  name_ = properties.name;
  if (const std::string why = why_unusable(capability_); !why.empty())
    throw Failure(PRUN_ENOTSUP, fmt::format("GPU {} ({}) cannot be used: {}", index_, name_, why));
  check(cublasLtCreate(&cublas_), "cublasLtCreate");
}

Context::~Context() {
#ifdef PRUN_CUDA_CUDNN
  if (cudnn_ != nullptr) cudnnDestroy(cudnn_);
#endif
  cublasLtDestroy(cublas_);
}

// That cuDNN is missing is no error: kernels of our own do what it would do. The log says so, once.
cudnnContext* Context::cudnn() {
  if (cudnn_tried_ || !options_.cudnn) return cudnn_;
  cudnn_tried_ = true;
#ifdef PRUN_CUDA_CUDNN
  try {
    if (const cudnnStatus_t status = cudnnCreate(&cudnn_); status != CUDNN_STATUS_SUCCESS)
      throw Failure(PRUN_ESYSTEM, fmt::format("cudnnCreate: {}", cudnnGetErrorString(status)));
  } catch (const Failure& failure) {
    cudnn_ = nullptr;
    log(1, fmt::format("cuda: without cuDNN: {}", failure.what()));
  }
#endif
  return cudnn_;
}

void Context::leave_stream() {
#ifdef PRUN_CUDA_CUDNN
  if (cudnn_ != nullptr) cudnnSetStream(cudnn_, nullptr);
#endif
}

void Context::log(int level, const std::string& text) const {
  if (log_ != nullptr) log_(level, text.c_str());
}

}  // namespace prun::cuda
