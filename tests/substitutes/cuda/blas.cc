// Entry points of cuBLASLt, as far as plugins/cuda uses them. They refuse as the library does: shapes and types that do
// not fit, less alignment than the heuristic was promised, too little workspace, an algorithm of another GEMM. Every
// GEMM that requested a workspace overwrites it.
//
//      PRUN_SUBSTITUTE_EPILOGUES=0   nothing is fused, as on GPUs or for types where cuBLASLt cannot
//      PRUN_SUBSTITUTE_ALGORITHMS=0  the heuristic finds none
//      PRUN_SUBSTITUTE_REFUSED=N     its first N are refused by the library's check
//      PRUN_SUBSTITUTE_REFUSED_LATE=N  its first N pass that check and are refused at launch, which ends a capture
//      PRUN_SUBSTITUTE_FUSED_FAST=1  a GEMM without an epilogue takes a millisecond; FUSED_SLOW=1: one with it
//      PRUN_SUBSTITUTE_ROUGH=1       its last one is fast, adds in the order of the first, and has another gelu
#include "blas.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>

#include "substitute.h"

namespace substitute {
namespace {

struct Preference {
  uint64_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

// The contents of a cublasLtMatmulAlgo_t.
struct Algorithm {
  uint32_t magic = 0x6f676c61;
  int32_t id = 0, rough = 0;
  uint64_t shape = 0, workspace = 0;
  uint32_t alignment[4] = {};
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

Algorithm read(const cublasLtMatmulAlgo_t& opaque) {
  std::array<char, sizeof(Algorithm)> bytes;
  std::memcpy(bytes.data(), &opaque, sizeof bytes);
  return std::bit_cast<Algorithm>(bytes);
}

bool refused(const Algorithm& algorithm) { return algorithm.id < setting("REFUSED", 0); }

template <class T, class Handle>
T& of(Handle handle) {
  if (handle == nullptr) die("a descriptor of cuBLASLt is null");
  return *reinterpret_cast<T*>(handle);
}

// A field of a descriptor, by the attribute that sets it.
struct Field {
  template <class T>
  Field(int its_attribute, T& field) : attribute(its_attribute), data(&field), bytes(sizeof field) {}
  int attribute;
  void* data;
  size_t bytes;
};

cublasStatus_t set(std::initializer_list<Field> fields, int attribute, const void* value, size_t size) {
  for (const Field& field : fields) {
    if (field.attribute != attribute) continue;
    if (value == nullptr || size != field.bytes) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(field.data, value, size);
    return CUBLAS_STATUS_SUCCESS;
  }
  die("cuBLASLt's attribute " + std::to_string(attribute) + " is none that the substitute knows (blas.cc)");
}

uint64_t shape_of(const Operands& all) {
  uint64_t hash = 14695981039346656037u;
  const auto add = [&](uint64_t x) { hash = (hash ^ x) * 1099511628211u; };
  for (const Layout* layout : {&all.a, &all.b, &all.c, &all.d}) {
    add(layout->type), add(layout->rows), add(layout->columns), add(static_cast<uint64_t>(layout->ld));
    add(static_cast<uint64_t>(layout->order)), add(static_cast<uint64_t>(layout->batch));
    add(static_cast<uint64_t>(layout->stride));
  }
  add(static_cast<uint64_t>(all.product.transpose_a)), add(static_cast<uint64_t>(all.product.transpose_b));
  add(all.product.epilogue), add(all.product.compute);
  return hash;
}

bool fits(const Layout& layout) {
  const uint64_t least = layout.order == CUBLASLT_ORDER_COL ? layout.rows : layout.columns;
  return layout.rows > 0 && layout.columns > 0 && layout.ld >= static_cast<int64_t>(least) && layout.batch > 0;
}

cublasStatus_t check_epilogue(const Operands& all) {
  const Product& p = all.product;
  constexpr uint32_t kKnown[] = {
      CUBLASLT_EPILOGUE_DEFAULT,     CUBLASLT_EPILOGUE_RELU,          CUBLASLT_EPILOGUE_BIAS,
      CUBLASLT_EPILOGUE_RELU_BIAS,   CUBLASLT_EPILOGUE_GELU,          CUBLASLT_EPILOGUE_GELU_AUX,
      CUBLASLT_EPILOGUE_GELU_BIAS,   CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
      CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA,        CUBLASLT_EPILOGUE_BGRADB};
  if (p.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  if (std::find(std::begin(kKnown), std::end(kKnown), p.epilogue) == std::end(kKnown) || setting("EPILOGUES", 1) == 0)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (all.d.order != CUBLASLT_ORDER_COL) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.bias_type >= 0 && p.bias_type != static_cast<int32_t>(all.d.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool gradient = p.epilogue == CUBLASLT_EPILOGUE_BGRADA || p.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  if (gradient && all.d.batch > 1) return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((p.epilogue & 128) == 0) return CUBLAS_STATUS_SUCCESS;
  if (p.aux_ld % 8 != 0 || p.aux_ld < static_cast<int64_t>(all.d.rows)) return CUBLAS_STATUS_INVALID_VALUE;
  if (p.aux_type >= 0 && p.aux_type != static_cast<int32_t>(all.d.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(const Operands& all) {
  for (const Layout* layout : {&all.a, &all.b, &all.c, &all.d})
    if (!fits(*layout) || layout->batch != all.d.batch) return CUBLAS_STATUS_INVALID_VALUE;
  const auto k = static_cast<uint64_t>(inner(all));
  if (k != (all.product.transpose_b == CUBLAS_OP_N ? all.b.rows : all.b.columns)) return CUBLAS_STATUS_INVALID_VALUE;
  for (const Layout* layout : {&all.c, &all.d})
    if (layout->rows != static_cast<uint64_t>(result_rows(all)) ||
        layout->columns != static_cast<uint64_t>(result_columns(all)))
      return CUBLAS_STATUS_INVALID_VALUE;
  const Product& p = all.product;
  if (p.pointer_mode != CUBLASLT_POINTER_MODE_HOST || p.scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.compute != CUBLAS_COMPUTE_32F && p.compute != CUBLAS_COMPUTE_32F_FAST_TF32) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool f32 = all.a.type == CUDA_R_32F && all.d.type == CUDA_R_32F;
  const bool bf16 = all.a.type == CUDA_R_16BF && p.compute == CUBLAS_COMPUTE_32F &&
                    (all.d.type == CUDA_R_16BF || all.d.type == CUDA_R_32F);
  if (all.a.type != all.b.type || all.c.type != all.d.type || (!f32 && !bf16)) return CUBLAS_STATUS_NOT_SUPPORTED;
  return check_epilogue(all);
}

constexpr int32_t kParts = 4;

// A split-K, for a long k and a small result, needs workspace for its partial sums.
uint64_t workspace_of(const Operands& all) {
  const int64_t m = result_rows(all), n = result_columns(all), k = inner(all);
  return k >= 32 && k > m && k > n ? static_cast<uint64_t>(kParts * m * n * all.d.batch) * sizeof(float) : 0;
}

bool aligned(const void* data, size_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

bool aligned(const Algorithm& algorithm, const Operands& all) {
  const void* const data[] = {all.a_data, all.b_data, all.beta != 0 ? all.c_data : all.d_data, all.d_data};
  const Layout* const layouts[] = {&all.a, &all.b, &all.c, &all.d};
  for (int i = 0; i < 4; ++i) {
    if (!aligned(data[i], std::max<size_t>(algorithm.alignment[i], bytes_of(layouts[i]->type)))) return false;
    const size_t step = static_cast<size_t>(layouts[i]->stride) * bytes_of(layouts[i]->type);
    if (layouts[i]->batch > 1 && step % algorithm.alignment[i] != 0) return false;
  }
  return (all.product.epilogue & 128) == 0 || aligned(all.product.aux, 16);
}

Operands operands(cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                  cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  return {of<Product>(product), of<Layout>(a), of<Layout>(b), of<Layout>(c), of<Layout>(d), {}, {}, {}, {}, 1, 0};
}

}  // namespace
}  // namespace substitute

using namespace substitute;  // the remaining functions are C's

ENTRY size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
ENTRY const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "an error of the substitute";
  }
}
ENTRY const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }
ENTRY cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
ENTRY cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

ENTRY cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                                uint64_t columns, int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, ld});
  return CUBLAS_STATUS_SUCCESS;
}
ENTRY cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
ENTRY cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                      cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                      size_t size) {
  Layout& l = of<Layout>(layout);
  return set({{CUBLASLT_MATRIX_LAYOUT_TYPE, l.type},
              {CUBLASLT_MATRIX_LAYOUT_ORDER, l.order},
              {CUBLASLT_MATRIX_LAYOUT_ROWS, l.rows},
              {CUBLASLT_MATRIX_LAYOUT_COLS, l.columns},
              {CUBLASLT_MATRIX_LAYOUT_LD, l.ld},
              {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, l.batch},
              {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, l.stride}},
             attribute, value, size);
}

ENTRY cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                              cudaDataType_t scale) {
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(new Product{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
ENTRY cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete reinterpret_cast<Product*>(product);
  return CUBLAS_STATUS_SUCCESS;
}
ENTRY cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                                    cublasLtMatmulDescAttributes_t attribute, const void* value,
                                                    size_t size) {
  Product& p = of<Product>(product);
  return set({{CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a},
              {CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b},
              {CUBLASLT_MATMUL_DESC_POINTER_MODE, p.pointer_mode},
              {CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue},
              {CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias},
              {CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, p.bias_stride},
              {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, p.bias_type},
              {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux},
              {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.aux_ld},
              {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, p.aux_stride},
              {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, p.aux_type}},
             attribute, value, size);
}

ENTRY cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
ENTRY cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
ENTRY cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                          cublasLtMatmulPreferenceAttributes_t attribute,
                                                          const void* value, size_t size) {
  Preference& p = of<Preference>(preference);
  uint32_t ignored = 0;
  return set({{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, p.workspace},
              {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.alignment[0]},
              {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.alignment[1]},
              {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.alignment[2]},
              {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.alignment[3]},
              {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, ignored},
              {CUBLASLT_MATMUL_PREF_SEARCH_MODE, ignored}},
             attribute, value, size);
}

ENTRY cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                                    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                    cublasLtMatmulPreference_t preference, int wanted,
                                                    cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const Operands all = operands(product, a, b, c, d);
  const Preference& limits = of<Preference>(preference);
  if (const cublasStatus_t status = substitute::check(all); status != CUBLAS_STATUS_SUCCESS) return status;
  if (setting("ALGORITHMS", 1) == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const uint64_t workspace : {workspace_of(all), uint64_t{0}}) {
    if (workspace > limits.workspace || *found == wanted || (*found > 0 && workspace_of(all) == 0)) continue;
    Algorithm algorithm;
    algorithm.id = *found;
    algorithm.shape = shape_of(all);
    algorithm.workspace = workspace;
    std::copy(std::begin(limits.alignment), std::end(limits.alignment), algorithm.alignment);
    cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
    result = {};
    std::memcpy(&result.algo, &algorithm, sizeof algorithm);
    result.workspaceSize = workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
  }
  if (*found > 0 && *found < wanted && setting("ROUGH", 0) != 0) {
    cublasLtMatmulHeuristicResult_t& result = results[*found];
    result = results[0];
    Algorithm algorithm = read(result.algo);
    algorithm.id = (*found)++;
    algorithm.rough = 1;
    std::memcpy(&result.algo, &algorithm, sizeof algorithm);
  }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
ENTRY cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                             cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                             cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                             const cublasLtMatmulAlgo_t* algo,
                                             cublasLtMatmulHeuristicResult_t* result) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Operands all = operands(product, a, b, c, d);
  const Algorithm algorithm = read(*algo);
  if (algorithm.magic != Algorithm().magic || algorithm.shape != shape_of(all)) return CUBLAS_STATUS_INVALID_VALUE;
  result->algo = *algo;
  result->workspaceSize = algorithm.workspace;
  return result->state = refused(algorithm) ? CUBLAS_STATUS_NOT_SUPPORTED : substitute::check(all);
}
ENTRY cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                          cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                          size_t size, size_t* written) {
  const Algorithm algorithm = read(*algo);
  const int32_t number = attribute == CUBLASLT_ALGO_CONFIG_ID           ? algorithm.id
                         : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? (algorithm.workspace > 0 ? kParts : 1)
                                                                        : 0;
  if (written != nullptr) *written = sizeof number;
  if (size != sizeof number) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &number, sizeof number);
  return CUBLAS_STATUS_SUCCESS;
}

ENTRY cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha,
                                    const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                    cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                    cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                                    const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                                    cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  Operands all = operands(product, a_layout, b_layout, c_layout, d_layout);
  all.a_data = a, all.b_data = b, all.c_data = c, all.d_data = d;
  all.alpha = *static_cast<const float*>(alpha), all.beta = *static_cast<const float*>(beta);
  if (const cublasStatus_t status = substitute::check(all); status != CUBLAS_STATUS_SUCCESS) return status;
  const Product& p = all.product;
  if (a == nullptr || b == nullptr || d == nullptr || (all.beta != 0 && c == nullptr))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.epilogue != CUBLASLT_EPILOGUE_RELU &&
      (p.epilogue & (CUBLASLT_EPILOGUE_BIAS | 16 | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)) != 0 &&
      p.bias == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  if ((p.epilogue & 128) != 0 && p.aux == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  Algorithm algorithm;  // without one the library queries its heuristic itself
  algorithm.shape = shape_of(all);
  std::fill(std::begin(algorithm.alignment), std::end(algorithm.alignment), 1u);
  if (algo != nullptr) algorithm = read(*algo);
  if (algorithm.magic != Algorithm().magic || algorithm.shape != shape_of(all)) return CUBLAS_STATUS_INVALID_VALUE;
  if (algo != nullptr && refused(algorithm)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (algo != nullptr && algorithm.id < setting("REFUSED_LATE", 0)) {
    cudaStreamSynchronize(stream);  // illegal in a capture, which is invalid from here on
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  if (algorithm.workspace > workspace_bytes || !aligned(workspace, 16) || !aligned(algorithm, all))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm.workspace > 0) all.parts = kParts;
  all.rough = algorithm.rough != 0;
  const cudaError_t error = enqueue(stream, [all, workspace, bytes = algorithm.workspace] {
    if (bytes > 0) std::memset(workspace, 0xff, bytes);
    const bool fused = all.product.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    const bool slow = setting(fused ? "FUSED_SLOW" : "FUSED_FAST", 0) != 0;
    if (slow || (setting("ROUGH", 0) != 0 && !all.rough)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    multiply(all);
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
