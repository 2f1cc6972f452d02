#include "context.h"

#include <fmt/format.h>
#ifdef PRUN_CUDA_CUDNN
#include <cudnn_graph.h>
#endif

#include "hardware.h"
#include "probe.h"
#include "prun/sdk/options.h"

namespace prun::cuda {

Options parse_options(const char* text) {
  Options o;
  const sdk::Option rows[] = {{"attention_workspace", &o.attention_workspace, 0, uint64_t{1} << 36, "bytes"},
                              {"autotune", &o.autotune},
                              {"cudnn", &o.cudnn},
                              {"deterministic", &o.deterministic},
                              {"tf32", &o.tf32}};
  sdk::parse_options("cuda", text, rows);
  return o;
}

// Returns the options of an op. A core that predates the field passes a smaller op.
Options options_of(const prun_op& op) {
  constexpr size_t kEnd = offsetof(prun_op, options) + sizeof op.options;
  return parse_options(op.size >= kEnd ? op.options : nullptr);
}

Context::Context(const prun_device_params& params)
    : options_(parse_options(params.options)), index_(params.index), log_(params.log) {
  expect_device(index_);
  use();
  capability_ = capability_of(index_);
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

// Returns cuDNN's handle, or null. A missing cuDNN is no error, because kernels of prun replace it. The log reports it
// once.
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
