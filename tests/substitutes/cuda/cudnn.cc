// Entry points of cuDNN's backend interface: descriptors are bags of attributes, a plan is the list of a graph's
// operations, which run on the handle's stream. One engine accepts every graph of known operations; only cuDNN can show
// whether one of its engines would.
//
//      PRUN_SUBSTITUTE_CUDNN=1          it is available; by default no handle can be made, so prun's kernels run
//      PRUN_SUBSTITUTE_CUDNN_VERSION    what cudnnGetVersion returns
//      PRUN_SUBSTITUTE_CUDNN_REFUSED=1  plans can be made but not executed, and an attempt ends a capture
#include <cudnn_graph.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cudnn_run.h"
#include "substitute.h"

namespace substitute {
namespace {

struct Descriptor;
using Shared = std::shared_ptr<Descriptor>;

struct Attribute {
  cudnnBackendAttributeType_t type;
  std::vector<char> bytes;
  std::vector<Shared> descriptors;
};
struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes;
  bool final = false;
};
struct Handle {
  cudaStream_t stream = nullptr;
  std::function<bool()> stream_exists;
  // A call of the library may access the stream of its handle.
  void check() const {
    if (stream_exists && !stream_exists()) die("cuDNN's handle has a stream that was destroyed");
  }
};

Shared& of(cudnnBackendDescriptor_t descriptor) { return *static_cast<Shared*>(descriptor); }

size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;  // enums
  }
}

template <class T>
std::vector<T> values(const Descriptor& d, cudnnBackendAttributeName_t name) {
  const auto found = d.attributes.find(name);
  if (found == d.attributes.end()) return {};
  std::vector<T> all(found->second.bytes.size() / sizeof(T));
  for (size_t i = 0; i < all.size(); ++i) std::memcpy(&all[i], found->second.bytes.data() + i * sizeof(T), sizeof(T));
  return all;
}
template <class T>
T value(const Descriptor& d, cudnnBackendAttributeName_t name, T otherwise) {
  const auto found = d.attributes.find(name);
  if (found == d.attributes.end() || found->second.bytes.size() < sizeof(T)) return otherwise;
  std::memcpy(&otherwise, found->second.bytes.data(), sizeof(T));
  return otherwise;
}
Shared descriptor(const Descriptor& d, cudnnBackendAttributeName_t name) {
  const auto found = d.attributes.find(name);
  return found == d.attributes.end() || found->second.descriptors.empty() ? nullptr : found->second.descriptors.front();
}

GraphTensor tensor(const Shared& d) {
  if (d == nullptr) die("an operation of a cuDNN graph lacks a tensor");
  GraphTensor t;
  t.id = value<int64_t>(*d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
  t.type = value(*d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
  t.is_virtual = value(*d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
  t.is_number = value(*d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, false);
  const auto dims = values<int64_t>(*d, CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = values<int64_t>(*d, CUDNN_ATTR_TENSOR_STRIDES);
  if (dims.size() != 4 || strides.size() != 4) die("a tensor of a cuDNN graph has not four dims");
  std::copy(dims.begin(), dims.end(), t.dims.begin());
  std::copy(strides.begin(), strides.end(), t.strides.begin());
  return t;
}

GraphOperation operation(const Descriptor& d) {
  using Kind = GraphOperation::Kind;
  GraphOperation op{};
  const auto at = [&](cudnnBackendAttributeName_t name) { return tensor(descriptor(d, name)); };
  switch (d.type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      op.kind = Kind::matmul;
      op.x = at(CUDNN_ATTR_OPERATION_MATMUL_ADESC), op.y = at(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
      op.more = {at(CUDNN_ATTR_OPERATION_MATMUL_BDESC)};
      return op;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      op.kind = Kind::reduce;
      op.x = at(CUDNN_ATTR_OPERATION_REDUCTION_XDESC), op.y = at(CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
      op.mode = value<int32_t>(*descriptor(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC), CUDNN_ATTR_REDUCTION_OPERATOR, -1);
      return op;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      op.kind = Kind::reshape;
      op.x = at(CUDNN_ATTR_OPERATION_RESHAPE_XDESC), op.y = at(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
      return op;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      op.kind = Kind::pointwise;
      const bool gradient = d.attributes.contains(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC);
      op.x = at(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
      op.y = at(gradient ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC : CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
      for (const auto name : {CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                              CUDNN_ATTR_OPERATION_POINTWISE_TDESC})
        if (d.attributes.contains(name)) op.more.push_back(at(name));
      const Shared how = descriptor(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      op.mode = value<int32_t>(*how, CUDNN_ATTR_POINTWISE_MODE, -1);
      op.axis = static_cast<int>(value<int64_t>(*how, CUDNN_ATTR_POINTWISE_AXIS, 0));
      return op;
    }
    default:
      die("an operation of a cuDNN graph is none that the substitute knows (cudnn.cc)");
  }
}

std::vector<GraphOperation> operations(const Descriptor& graph) {
  std::vector<GraphOperation> all;
  for (const Shared& op : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).descriptors) all.push_back(operation(*op));
  return all;
}

// Returns the workspace that cuDNN 9.19 needs on Hopper for a graph of attention (measured by cudnn_plan_test.cc).
int64_t workspace_of(const Descriptor& graph) {
  int64_t heads = 0, kv_heads = 0, queries = 0, keys = 0, head = 0, value = 0;  // heads: of all samples
  bool forward = false, summed = false;
  for (const GraphOperation& op : operations(graph)) {
    forward = forward || (op.kind == GraphOperation::Kind::reduce && op.mode == CUDNN_REDUCE_TENSOR_MAX);
    if (op.kind != GraphOperation::Kind::matmul) continue;
    summed = summed || (!op.y.is_virtual && op.y.type == CUDNN_DATA_FLOAT);
    if (heads != 0 && value == 0) value = op.y.dims[3];  // the second one: the gradient of values
    if (heads != 0) continue;                            // the first matmul computes scores of queries and keys
    heads = op.y.dims[0] * op.y.dims[1], queries = op.y.dims[2], keys = op.y.dims[3], head = op.x.dims[3];
    kv_heads = op.more[0].dims[0] * op.more[0].dims[1];
  }
  if (forward) return 256;
  const auto padded = [](int64_t rows, int64_t to) { return (rows + to - 1) / to * to; };
  const int64_t sums = 4 * heads * padded(queries, 64) * head;
  const int64_t scores = 2 * heads * padded(queries, 64) * padded(keys, 128);
  return 256 + (summed ? sums : scores) + (heads > kv_heads ? 2 * heads * keys * (head + value) : 0);
}

// Returns whether the statistics that a gradient reads are contiguous; before 9.26 cuDNN ignores their strides.
bool reads_statistics(const Descriptor& graph) {
  bool forward = false, contiguous = true;
  for (const GraphOperation& op : operations(graph)) {
    forward = forward || (op.kind == GraphOperation::Kind::reduce && op.mode == CUDNN_REDUCE_TENSOR_MAX);
    for (const GraphTensor& t : op.more)
      if (!t.is_virtual && !t.is_number && t.dims[3] == 1)
        contiguous = contiguous && t.strides[1] == t.dims[2] && t.strides[0] == t.dims[1] * t.dims[2];
  }
  return forward || contiguous;
}

// The attribute by which a configuration and a plan refer to their graph.
constexpr auto kGraph = CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH;

cudnnStatus_t finalize(Descriptor& d) {
  if (d.type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
    for (const GraphOperation& op : operations(d))
      if (!known(op)) return CUDNN_STATUS_NOT_SUPPORTED;
  if (d.type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR && !reads_statistics(d)) return CUDNN_STATUS_NOT_SUPPORTED;
  if (d.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const Shared configuration = descriptor(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (configuration == nullptr || !configuration->attributes.contains(kGraph)) return CUDNN_STATUS_BAD_PARAM;
    d.attributes[kGraph] = configuration->attributes[kGraph];
  }
  d.final = true;
  return CUDNN_STATUS_SUCCESS;
}

bool aligned(const Descriptor& graph, const std::map<int64_t, void*>& memory) {
  for (const Shared& op : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).descriptors)
    for (const auto& [name, attribute] : op->attributes)
      for (const Shared& d : attribute.descriptors) {
        if (d->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR) continue;
        const auto found = memory.find(value<int64_t>(*d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0));
        const auto boundary = static_cast<uintptr_t>(value<int64_t>(*d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16));
        if (found != memory.end() && reinterpret_cast<uintptr_t>(found->second) % boundary != 0) return false;
      }
  return true;
}

}  // namespace
}  // namespace substitute

using namespace substitute;  // the remaining functions are C's

ENTRY size_t cudnnGetVersion() { return static_cast<size_t>(setting("CUDNN_VERSION", CUDNN_VERSION)); }
ENTRY const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS           ? "CUDNN_STATUS_SUCCESS"
         : status == CUDNN_STATUS_NOT_INITIALIZED ? "CUDNN_STATUS_NOT_INITIALIZED"
         : status == CUDNN_STATUS_NOT_SUPPORTED   ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status == CUDNN_STATUS_BAD_PARAM       ? "CUDNN_STATUS_BAD_PARAM"
                                                  : "an error of the substitute";
}
ENTRY void cudnnGetLastErrorString(char* message, size_t size) {
  if (size > 0) *message = '\0';
}
ENTRY cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (setting("CUDNN", 0) == 0) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
ENTRY cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  reinterpret_cast<Handle*>(handle)->check();
  delete reinterpret_cast<Handle*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
ENTRY cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  Handle& ours = *reinterpret_cast<Handle*>(handle);
  ours.check();
  ours.stream = stream;
  ours.stream_exists = stream == nullptr ? nullptr : existence(stream);
  return CUDNN_STATUS_SUCCESS;
}

ENTRY cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* made) {
  *made = new Shared(std::make_shared<Descriptor>(Descriptor{type, {}, false}));
  return CUDNN_STATUS_SUCCESS;
}
ENTRY cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete static_cast<Shared*>(d);
  return CUDNN_STATUS_SUCCESS;
}
ENTRY cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) { return substitute::finalize(*of(d)); }
ENTRY cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                             cudnnBackendAttributeType_t type, int64_t n, const void* elements) {
  if (of(d)->final) return CUDNN_STATUS_NOT_INITIALIZED;
  if (n < 0 || (n > 0 && elements == nullptr)) return CUDNN_STATUS_BAD_PARAM;
  Attribute attribute{type, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < n; ++i) {
      const Shared& other = of(static_cast<const cudnnBackendDescriptor_t*>(elements)[i]);
      if (!other->final && other->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) return CUDNN_STATUS_BAD_PARAM;
      attribute.descriptors.push_back(other);
    }
  } else {
    const auto* bytes = static_cast<const char*>(elements);
    attribute.bytes.assign(bytes, bytes + static_cast<size_t>(n) * size_of(type));
  }
  of(d)->attributes[name] = std::move(attribute);
  return CUDNN_STATUS_SUCCESS;
}
ENTRY cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                             cudnnBackendAttributeType_t, int64_t wanted, int64_t* n, void* elements) {
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:  // one, for any mode
      *n = 1;
      if (wanted < 1 || elements == nullptr) return CUDNN_STATUS_SUCCESS;
      of(*static_cast<cudnnBackendDescriptor_t*>(elements))->attributes[kGraph] = of(d)->attributes.at(kGraph);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      return *n = 1, CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      return *n = 0, CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      *n = 1;
      *static_cast<int64_t*>(elements) = workspace_of(*descriptor(*of(d), kGraph));
      return CUDNN_STATUS_SUCCESS;
    default:
      die("cuDNN's attribute " + std::to_string(name) + " is none that the substitute knows (cudnn.cc)");
  }
}

ENTRY cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                        cudnnBackendDescriptor_t pack) {
  Handle& ours = *reinterpret_cast<Handle*>(handle);
  ours.check();
  if (setting("CUDNN_REFUSED", 0) != 0) {
    cudaStreamSynchronize(ours.stream);  // illegal in a capture, which is invalid from here on
    return CUDNN_STATUS_EXECUTION_FAILED;
  }
  const auto ids = values<int64_t>(*of(pack), CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = values<void*>(*of(pack), CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  void* workspace = value<void*>(*of(pack), CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  if (ids.size() != pointers.size() || workspace == nullptr) return CUDNN_STATUS_BAD_PARAM;
  std::map<int64_t, void*> memory;
  for (size_t i = 0; i < ids.size(); ++i) memory[ids[i]] = pointers[i];
  const Shared graph = descriptor(*of(plan), kGraph);
  if (!aligned(*graph, memory)) return CUDNN_STATUS_BAD_PARAM;
  auto all = std::make_shared<std::vector<GraphOperation>>(operations(*graph));
  std::map<int64_t, float> numbers;  // host memory, read now
  for (const GraphOperation& op : *all)
    for (const GraphTensor& t : op.more)
      if (t.is_number) numbers[t.id] = *static_cast<const float*>(memory.at(t.id));
  const auto bytes = static_cast<size_t>(workspace_of(*graph));
  const cudaError_t error = enqueue(ours.stream, [all, memory, numbers, workspace, bytes] {
    std::memset(workspace, 0xff, bytes);
    run_graph(*all, memory, numbers);
  });
  return error == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}
