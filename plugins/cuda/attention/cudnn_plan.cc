#include "cudnn_plan.h"

#include <cudnn_version.h>
#include <fmt/format.h>

#include <algorithm>

#include "cuda/device/failure.h"

namespace prun::cuda {
namespace {

// Alignments in bytes: kVectors of tensors that are copied in vectors, kStatistics of statistics, which may begin at
// any row.
constexpr int64_t kVectors = 16, kStatistics = 4;

void check_cudnn(cudnnStatus_t status, const char* call, prun_status otherwise = PRUN_ENOTSUP) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char reason[256] = "";
  cudnnGetLastErrorString(reason, sizeof reason);
  throw Failure(otherwise,
                fmt::format("{}: {}{}{}", call, cudnnGetErrorString(status), *reason != 0 ? ": " : "", reason));
}

// Returns engine configurations, best first.
std::vector<CudnnDescriptor> configurations(const CudnnDescriptor& graph, const CudnnTarget& target,
                                            cudnnBackendHeurMode_t mode) {
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
#if CUDNN_VERSION >= 90800
  if (target.device != nullptr) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device);
#endif
  heuristics.finalize();
  int64_t n = 0;
  check_cudnn(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       0, &n, nullptr),
              "cudnnBackendGetAttribute");
  std::vector<CudnnDescriptor> all;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < n; ++i) raw.push_back(all.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  check_cudnn(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       n, &n, raw.data()),
              "cudnnBackendGetAttribute");
  all.erase(all.begin() + std::min<int64_t>(n, static_cast<int64_t>(all.size())), all.end());
  return all;
}

bool repeatable(const CudnnDescriptor& configuration) {
  CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  int64_t n = 0;
  check_cudnn(cudnnBackendGetAttribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       1, &n, &raw),
              "cudnnBackendGetAttribute");
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  check_cudnn(cudnnBackendGetAttribute(raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                       CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes),
              "cudnnBackendGetAttribute");
  return std::find(notes, notes + n, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == notes + n;
}

}  // namespace

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  check_cudnn(cudnnBackendCreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
  descriptor_ = {made, [](void* descriptor) { cudnnBackendDestroyDescriptor(descriptor); }};
}

CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t name, const CudnnDescriptor& other) {
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, other.get());
}

CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t name, const std::vector<CudnnDescriptor>& others) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const CudnnDescriptor& other : others) raw.push_back(other.get());
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.data(), static_cast<int64_t>(raw.size()));
}

CudnnDescriptor& CudnnDescriptor::finalize() {
  check_cudnn(cudnnBackendFinalize(get()), "cudnnBackendFinalize");
  return *this;
}

int64_t CudnnDescriptor::integer(cudnnBackendAttributeName_t name) const {
  int64_t value = 0, n = 0;
  check_cudnn(cudnnBackendGetAttribute(get(), name, CUDNN_TYPE_INT64, 1, &n, &value), "cudnnBackendGetAttribute");
  return value;
}

void CudnnDescriptor::set_bytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const void* values,
                                int64_t n) {
  check_cudnn(cudnnBackendSetAttribute(get(), name, type, n, values), "cudnnBackendSetAttribute");
}

CudnnTarget CudnnTarget::described(const std::string& json) {
#if CUDNN_VERSION >= 90800
  CudnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, json.data(),
             static_cast<int64_t>(json.size()));
  return {nullptr, std::make_shared<CudnnDescriptor>(device.finalize())};
#else
  throw Failure(PRUN_ENOTSUP,
                "cuDNN takes descriptions of devices from 9.8 on; this was built with an older one: " + json);
#endif
}

CudnnCall::CudnnCall(std::shared_ptr<const CudnnPlan> plan, std::vector<void*> pointers, void* workspace)
    : plan_(std::move(plan)), pack_(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
  std::vector<int64_t> ids = plan_->ids_;
  for (const auto& [id, value] : plan_->numbers_) ids.push_back(id), pointers.push_back(const_cast<float*>(&value));
  pack_.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.data(), static_cast<int64_t>(ids.size()))
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers.data(),
           static_cast<int64_t>(pointers.size()))
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
      .finalize();
}

void CudnnCall::enqueue(cudnnHandle_t handle, cudaStream_t stream) const {
  check_cudnn(cudnnSetStream(handle, stream), "cudnnSetStream", PRUN_ESYSTEM);
  check_cudnn(cudnnBackendExecute(handle, plan_->plan_.get(), pack_.get()), "cudnnBackendExecute", PRUN_ESYSTEM);
}

CudnnGraph::Tensor CudnnGraph::add(const Four& dims, const Four& strides, cudnnDataType_t type, int64_t alignment,
                                   bool is_virtual, bool is_number) {
  const auto id = static_cast<int64_t>(tensors_.size()) + 1;
  CudnnDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims.data(), 4)
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.data(), 4)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment)
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual)
      .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, is_number)
      .finalize();
  tensors_.push_back(std::move(tensor));
  if (!is_virtual && !is_number) ids_.push_back(id);
  return static_cast<Tensor>(id - 1);
}

CudnnGraph::Tensor CudnnGraph::tensor(const Four& dims, const Four& strides, cudnnDataType_t type) {
  return add(dims, strides, type, kVectors, false, false);
}

CudnnGraph::Tensor CudnnGraph::statistics(const Four& dims, const Four& strides) {
  return add(dims, strides, CUDNN_DATA_FLOAT, kStatistics, false, false);
}

CudnnGraph::Tensor CudnnGraph::between(const Four& dims, const Four& strides, cudnnDataType_t type) {
  return add(dims, strides, type, type == CUDNN_DATA_BFLOAT16 ? kVectors : kStatistics, true, false);
}

CudnnGraph::Tensor CudnnGraph::between(const Four& dims, cudnnDataType_t type) {
  return between(dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}, type);
}

CudnnGraph::Tensor CudnnGraph::number(float value) {
  const Tensor made = add({1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, kStatistics, false, true);
  numbers_.emplace_back(made + 1, value);
  return made;
}

CudnnDescriptor& CudnnGraph::operation(cudnnBackendDescriptorType_t type) { return operations_.emplace_back(type); }

void CudnnGraph::matmul(Tensor a, Tensor b, Tensor c) {
  CudnnDescriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT).finalize();
  operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how)
      .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensors_[a])
      .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensors_[b])
      .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensors_[c])
      .finalize();
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y, Tensor b, Tensor select) {
  const bool compares = mode >= CUDNN_POINTWISE_CMP_EQ && mode <= CUDNN_POINTWISE_CMP_LE;
  CudnnDescriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, compares ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT);
  pointwise_of(how, x, y, b, select);
}

void CudnnGraph::pointwise_gradient(cudnnPointwiseMode_t mode, Tensor dy, Tensor x, Tensor dx) {
  CudnnDescriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .finalize();
  operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, tensors_[dy])
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors_[x])
      .set(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, tensors_[dx])
      .finalize();
}

void CudnnGraph::index(int64_t axis, Tensor x, Tensor y) {
  CudnnDescriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, CUDNN_POINTWISE_GEN_INDEX)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  pointwise_of(how, x, y, -1, -1);
}

void CudnnGraph::pointwise_of(CudnnDescriptor& how, Tensor x, Tensor y, Tensor b, Tensor select) {
  how.finalize();
  CudnnDescriptor& op = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors_[x])
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors_[y]);
  if (b >= 0) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors_[b]);
  if (select >= 0) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensors_[select]);
  op.finalize();
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y) {
  CudnnDescriptor how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op)
      .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .finalize();
  operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensors_[x])
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensors_[y])
      .finalize();
}

void CudnnGraph::reshape(Tensor x, Tensor y) {
  operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensors_[x])
      .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensors_[y])
      .finalize();
}

CudnnPlan CudnnGraph::plan(const CudnnTarget& target, bool repeatable_only,
                           const std::function<void(const CudnnPlan&)>& rehearse) const {
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations_);
  if (target.handle != nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  graph.finalize();
  std::string reason = "no engine takes it";
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) try {
      for (const CudnnDescriptor& configuration : configurations(graph, target, mode)) {
        if (repeatable_only && !repeatable(configuration)) continue;
        try {
          CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
          if (target.handle != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
#if CUDNN_VERSION >= 90800
          if (target.device != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.device);
#endif
          plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration).finalize();
          CudnnPlan made(std::move(plan));
          made.workspace_bytes_ = static_cast<size_t>(made.plan_.integer(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
          made.ids_ = ids_, made.numbers_ = numbers_;
          if (rehearse != nullptr) rehearse(made);
          return made;
        } catch (const Failure& failure) {
          if (failure.status == PRUN_ENOMEM) throw;
          reason = failure.what();
        }
      }
    } catch (const Failure& failure) {
      if (failure.status == PRUN_ENOMEM) throw;
      reason = failure.what();
    }
  throw Failure(PRUN_ENOTSUP, "cuDNN: " + reason);
}

}  // namespace prun::cuda
