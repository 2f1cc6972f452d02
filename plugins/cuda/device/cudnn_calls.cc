// The functions of cuDNN that this plugin calls. A call of any other function fails when the plugin is linked.
#include <cudnn_graph.h>
#include <cudnn_version.h>

#include "shared_library.h"

namespace prun::cuda {
namespace {

constexpr SharedLibrary kCudnn("libcudnn.so." PRUN_TEXT(CUDNN_MAJOR), "cuDNN " PRUN_TEXT(CUDNN_MAJOR));

}  // namespace
}  // namespace prun::cuda

using prun::cuda::kCudnn;

extern "C" {

// clang-format off
PRUN_FORWARD(kCudnn, size_t, cudnnGetVersion, (), ())
PRUN_FORWARD(kCudnn, const char*, cudnnGetErrorString, (cudnnStatus_t status), (status))
PRUN_FORWARD(kCudnn, void, cudnnGetLastErrorString, (char* message, size_t size), (message, size))
PRUN_FORWARD(kCudnn, cudnnStatus_t, cudnnCreate, (cudnnHandle_t* handle), (handle))
PRUN_FORWARD(kCudnn, cudnnStatus_t, cudnnDestroy, (cudnnHandle_t handle), (handle))
PRUN_FORWARD(kCudnn, cudnnStatus_t, cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))

PRUN_FORWARD(kCudnn, cudnnStatus_t, cudnnBackendCreateDescriptor,
             (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor), (type, descriptor))
PRUN_FORWARD(kCudnn, cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor), (descriptor))
PRUN_FORWARD(kCudnn, cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), (descriptor))
PRUN_FORWARD(kCudnn, cudnnStatus_t, cudnnBackendSetAttribute,
             (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
              const void* values),
             (descriptor, name, type, n, values))
PRUN_FORWARD(kCudnn, cudnnStatus_t, cudnnBackendGetAttribute,
             (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t wanted,
              int64_t* n, void* values),
             (descriptor, name, type, wanted, n, values))
PRUN_FORWARD(kCudnn, cudnnStatus_t, cudnnBackendExecute,
             (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack), (handle, plan, pack))
// clang-format on

}  // extern "C"
