// The open device: its number, properties, and the handles of its libraries. One a rank.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "failure.h"

struct cudnnContext;

namespace prun_cuda {

class Context {
 public:
  explicit Context(const prun_device_params& params);
  ~Context();
  Context(const Context&) = delete;

  int index() const { return index_; }
  int capability() const { return capability_; }  // 90 for sm_90
  int multiprocessors() const { return multiprocessors_; }
  int shared_bytes_per_block() const { return shared_bytes_; }  // the most a kernel may opt in to
  cublasLtHandle_t cublas() const { return cublas_; }
  cudnnContext* cudnn();  // made on first use; null where cuDNN is missing or was not built in
  void log(int level, const std::string& text) const;

 private:
  int index_ = 0, capability_ = 0, multiprocessors_ = 0, shared_bytes_ = 0;
  cublasLtHandle_t cublas_ = nullptr;
  cudnnContext* cudnn_ = nullptr;
  bool cudnn_tried_ = false;
  void (*log_)(int level, const char* text) = nullptr;
};

}  // namespace prun_cuda
