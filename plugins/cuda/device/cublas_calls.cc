// The functions of cuBLASLt that this plugin calls. A call of any other function fails when the plugin is linked.
#include <cublasLt.h>

#include "shared_library.h"

namespace prun::cuda {
namespace {

constexpr SharedLibrary kCublas("libcublasLt.so." PRUN_TEXT(CUBLAS_VER_MAJOR),
                                "cuBLAS of CUDA " PRUN_TEXT(CUBLAS_VER_MAJOR));

}  // namespace
}  // namespace prun::cuda

using prun::cuda::kCublas;

extern "C" {

// clang-format off
PRUN_FORWARD(kCublas, size_t, cublasLtGetVersion, (), ())
PRUN_FORWARD(kCublas, const char*, cublasLtGetStatusName, (cublasStatus_t status), (status))
PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtCreate, (cublasLtHandle_t* handle), (handle))
PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))

PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatrixLayoutCreate,
             (cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld), (layout, type, rows, cols, ld))
PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatrixLayoutSetAttribute,
             (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attr, const void* value, size_t size), (layout, attr, value, size))

PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatmulDescCreate,
             (cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale), (desc, compute, scale))
PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))
PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatmulDescSetAttribute,
             (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attr, const void* value, size_t size), (desc, attr, value, size))

PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t* preference), (preference))
PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), (preference))
PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
             (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attr, const void* value, size_t size),
             (preference, attr, value, size))

PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
             (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
              cublasLtMatmulHeuristicResult_t results[], int* n),
             (handle, desc, a, b, c, d, preference, wanted, results, n))
PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatmulAlgoCheck,
             (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
              cublasLtMatmulHeuristicResult_t* result),
             (handle, desc, a, b, c, d, algo, result))
PRUN_FORWARD(kCublas, cublasStatus_t, cublasLtMatmul,
             (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta, const void* c, cublasLtMatrixLayout_t c_layout,
              void* d, cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
              cudaStream_t stream),
             (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace, workspace_bytes, stream))
// clang-format on

}  // extern "C"
