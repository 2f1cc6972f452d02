// The open device: its number, properties, and the handles of its libraries. One per rank.
//
// It uses the device's primary context, as NCCL and every other library in the process does, and does not reconfigure
// it.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <string>

#include "failure.h"
#include "options.h"

struct cudnnContext;

namespace prun::cuda {

class Context {
 public:
  // Throws Failure with the reason: PRUN_EINVAL for options, PRUN_ENOTSUP if no device of this number can be used.
  explicit Context(const prun_device_params& params);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Sets this thread's device. CUDA has a current device per thread, so every function of the plugin that calls CUDA
  // starts with this.
  void use() const { check(cudaSetDevice(index_), "cudaSetDevice"); }

  int index() const { return index_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  int capability() const { return capability_; }     // 90 for sm_90
  int multiprocessors() const { return multiprocessors_; }
  const Options& options() const { return options_; }
  cublasLtHandle_t cublas() const { return cublas_; }
  cudnnContext* cudnn();  // created on first use; null if cuDNN is missing, not built in, or disabled
  // Detaches cuDNN's handle from the last stream that it enqueued on. Must be called before a stream is destroyed.
  void leave_stream();
  void log(int level, const std::string& text) const;

  // Cached choices of cuBLASLt's algorithms, by key (blas_choice.cc).
  std::map<std::string, cublasLtMatmulAlgo_t>& algorithms() { return algorithms_; }
  std::map<std::string, bool>& fused_sums() { return fused_sums_; }

 private:
  Options options_;
  int index_ = 0, capability_ = 0, multiprocessors_ = 0;
  std::string name_;
  cublasLtHandle_t cublas_ = nullptr;
  cudnnContext* cudnn_ = nullptr;
  bool cudnn_tried_ = false;
  std::map<std::string, cublasLtMatmulAlgo_t> algorithms_;
  std::map<std::string, bool> fused_sums_;
  void (*log_)(int level, const char* text) = nullptr;
};

}  // namespace prun::cuda
