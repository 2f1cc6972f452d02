// A graph of cuDNN's operations, and the plan that one of its engines makes of it: a thin layer over its backend API.
// All tensors have four dims.
//
// A plan can be made for an absent device, from a description of it (CudnnTarget::described).
#pragma once
#include <cudnn_graph.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace prun::cuda {

// A descriptor of cuDNN's. Every failure throws Failure(PRUN_ENOTSUP) with cuDNN's reason.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);

  template <class T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T* values, int64_t n) {
    set_bytes(name, type, values, n);
    return *this;
  }
  template <class T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    return set(name, type, &value, 1);
  }
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const CudnnDescriptor& other);
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const std::vector<CudnnDescriptor>& others);
  CudnnDescriptor& finalize();
  int64_t integer(cudnnBackendAttributeName_t name) const;
  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }

 private:
  void set_bytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const void* values, int64_t n);

  std::shared_ptr<void> descriptor_;
};

// The device for which a plan is made.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;           // an open device, or
  std::shared_ptr<CudnnDescriptor> device;  // a device that is only described
  // `json`: cuDNN's CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION of a device (cuDNN 9.8 or newer).
  static CudnnTarget described(const std::string& json);
};

class CudnnPlan {
 public:
  size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  friend class CudnnGraph;
  friend class CudnnCall;
  explicit CudnnPlan(CudnnDescriptor plan) : plan_(std::move(plan)) {}

  CudnnDescriptor plan_;
  size_t workspace_bytes_ = 0;
  std::vector<int64_t> ids_;
  std::vector<std::pair<int64_t, float>> numbers_;
};

// A plan with its tensors' memory. `pointers` are those of the graph's tensors in memory, in the order of their
// creation.
class CudnnCall {
 public:
  CudnnCall(std::shared_ptr<const CudnnPlan> plan, std::vector<void*> pointers, void* workspace);
  void enqueue(cudnnHandle_t handle, cudaStream_t stream) const;

 private:
  std::shared_ptr<const CudnnPlan> plan_;
  CudnnDescriptor pack_;
};

class CudnnGraph {
 public:
  using Four = std::array<int64_t, 4>;
  using Tensor = int;  // index of a tensor

  Tensor tensor(const Four& dims, const Four& strides, cudnnDataType_t type);  // in memory, aligned to 16 bytes
  Tensor statistics(const Four& dims, const Four& strides);                    // in memory, f32 at any address
  Tensor between(const Four& dims, cudnnDataType_t type);                      // never in memory, row-major
  Tensor between(const Four& dims, const Four& strides, cudnnDataType_t type);
  Tensor number(float value);

  void matmul(Tensor a, Tensor b, Tensor c);
  // Adds y = x, or x with b, by mode; `select` is the condition of a binary select.
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y, Tensor b = -1, Tensor select = -1);
  // Adds dx, the gradient of a function of x, from that of its result.
  void pointwise_gradient(cudnnPointwiseMode_t mode, Tensor dy, Tensor x, Tensor dx);
  void index(int64_t axis, Tensor x, Tensor y);  // y: the index along `axis` of x, as i32
  void reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y);
  void reshape(Tensor x, Tensor y);

  // Returns the first plan of cuDNN's heuristics that can be made and for which `rehearse` does not throw Failure.
  // `repeatable` admits only engines whose results are bitwise identical in every run. Throws Failure(PRUN_ENOTSUP) if
  // there is none.
  CudnnPlan plan(const CudnnTarget& target, bool repeatable,
                 const std::function<void(const CudnnPlan&)>& rehearse = nullptr) const;

 private:
  Tensor add(const Four& dims, const Four& strides, cudnnDataType_t type, int64_t alignment, bool is_virtual,
             bool is_number);
  CudnnDescriptor& operation(cudnnBackendDescriptorType_t type);
  void pointwise_of(CudnnDescriptor& mode, Tensor x, Tensor y, Tensor b, Tensor select);

  std::vector<CudnnDescriptor> tensors_, operations_;
  std::vector<int64_t> ids_;
  std::vector<std::pair<int64_t, float>> numbers_;
};

}  // namespace prun::cuda
