#include "blas_gemm.h"

#include <fmt/format.h>

#include <algorithm>

#include "blas_choice.h"
#include "cuda/device/context.h"
#include "cuda/device/stream.h"

namespace prun::cuda {
namespace {

// Number of algorithms that are compared with autotune=1, or tried if the first is refused.
constexpr int kAlgorithms = 16;

cudaDataType_t data_type(int dtype) { return dtype == PRUN_BF16 ? CUDA_R_16BF : CUDA_R_32F; }

template <class T>
void set(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t name, T value) {
  check(cublasLtMatmulDescSetAttribute(matmul, name, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name, T value) {
  check(cublasLtMatrixLayoutSetAttribute(layout, name, &value, sizeof value), "cublasLtMatrixLayoutSetAttribute");
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t name, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

// Returns the alignment of every matrix of a batch; cuBLASLt distinguishes up to 256 bytes.
uint32_t alignment(const void* data, int64_t elements, int64_t batch, const MatrixStrides& strides, int dtype) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(data) | 256;
  if (batch > 1) bits |= static_cast<uintptr_t>((strides.entry < 0 ? elements : strides.entry) * dtype_bytes(dtype));
  if (strides.row >= 0) bits |= static_cast<uintptr_t>(strides.row * dtype_bytes(dtype));
  return static_cast<uint32_t>(bits & -bits);
}

}  // namespace

BlasGemm::Layout BlasGemm::layout(int dtype, int64_t rows, int64_t columns, int64_t batch,
                                  const MatrixStrides& strides) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, data_type(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                                   strides.row < 0 ? rows : strides.row),
        "cublasLtMatrixLayoutCreate");
  Layout layout(made);
  if (batch > 1) {
    set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
    set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, strides.entry < 0 ? rows * columns : strides.entry);
  }
  return layout;
}

BlasGemm::BlasGemm(Context& context, const Gemm& gemm, const Epilogue& epilogue, void* workspace,
                   size_t workspace_bytes)
    : context_(context),
      gemm_(gemm),
      fused_(epilogue.kind != CUBLASLT_EPILOGUE_DEFAULT),
      workspace_(workspace),
      workspace_bytes_(workspace_bytes) {
  const GemmShape& s = gemm.shape;
  const bool tf32 = s.input == PRUN_F32 && (s.tf32 || context.options().tf32);
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  matmul_.reset(made);
  describe(epilogue);
  a_ = s.transpose_b ? layout(s.input, s.k, s.n, s.batch, s.in_b) : layout(s.input, s.n, s.k, s.batch, s.in_b);
  b_ = s.transpose_a ? layout(s.input, s.m, s.k, s.batch, s.in_a) : layout(s.input, s.k, s.m, s.batch, s.in_a);
  c_ = layout(s.output, s.n, s.m, s.batch, s.in_c);
}

void BlasGemm::describe(const Epilogue& epilogue) {
  const auto operation = [](bool transposed) { return static_cast<int32_t>(transposed ? CUBLAS_OP_T : CUBLAS_OP_N); };
  set(matmul_.get(), CUBLASLT_MATMUL_DESC_TRANSA, operation(gemm_.shape.transpose_b));
  set(matmul_.get(), CUBLASLT_MATMUL_DESC_TRANSB, operation(gemm_.shape.transpose_a));
  set(matmul_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(epilogue.kind));
  // The vector has C's type by default, which is right here: a bias has the dtype of y, and its gradient is f32 as dw
  // is.
  if (epilogue.vector != nullptr) set(matmul_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.vector);
  if (epilogue.matrix != nullptr) {
    set(matmul_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue.matrix);
    set(matmul_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gemm_.shape.n);
  }
}

std::vector<cublasLtMatmulHeuristicResult_t> BlasGemm::algorithms(int most) const {
  const GemmShape& s = gemm_.shape;
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  const Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(made);
  set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes_));
  set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(gemm_.b, s.k * s.n, s.batch, s.in_b, s.input));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(gemm_.a, s.m * s.k, s.batch, s.in_a, s.input));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(c_data(), s.m * s.n, s.batch, s.in_c, s.output));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(gemm_.c, s.m * s.n, s.batch, s.in_c, s.output));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(context_.cublas(), matmul_.get(), a_.get(), b_.get(),
                                                               c_.get(), c_.get(), made, most, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  if (status == CUBLAS_STATUS_INVALID_VALUE && fused_) return {};  // cuBLASLt lacks this epilogue for a type
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  found.resize(static_cast<size_t>(count));
  // The heuristic only estimates; the check confirms that an algorithm computes this GEMM with its epilogue.
  std::erase_if(found, [&](const auto& one) {
    cublasLtMatmulHeuristicResult_t checked{};
    return one.state != CUBLAS_STATUS_SUCCESS ||
           cublasLtMatmulAlgoCheck(context_.cublas(), matmul_.get(), a_.get(), b_.get(), c_.get(), c_.get(), &one.algo,
                                   &checked) != CUBLAS_STATUS_SUCCESS ||
           std::max(one.workspaceSize, checked.workspaceSize) > workspace_bytes_;
  });
  return found;
}

bool BlasGemm::starts(const cublasLtMatmulAlgo_t& algorithm) const {
  try {
    rehearse(context_, [&](cudaStream_t stream) { check(enqueue(algorithm, stream), "cublasLtMatmul"); });
    return true;
  } catch (const Failure& failure) {
    if (failure.status == PRUN_ENOMEM) throw;  // depends on this rank's memory: other ranks would choose differently
    const GemmShape& s = gemm_.shape;
    context_.log(0, fmt::format("cuda: an algorithm for a GEMM of {} x {} x {} passed cuBLASLt's check and was refused "
                                "at launch: {}",
                                s.m, s.n, s.k, failure.what()));
    return false;
  }
}

std::vector<cublasLtMatmulHeuristicResult_t> BlasGemm::starting(int most) const {
  std::vector<cublasLtMatmulHeuristicResult_t> found = algorithms(most);
  found.erase(found.begin(),
              std::find_if(found.begin(), found.end(), [&](const auto& one) { return starts(one.algo); }));
  return found;
}

std::unique_ptr<BlasGemm> BlasGemm::find(Context& context, const Gemm& gemm, const Epilogue& epilogue, void* workspace,
                                         size_t workspace_bytes) {
  auto blas = std::make_unique<BlasGemm>(context, gemm, epilogue, workspace, workspace_bytes);
  const bool compares = context.options().autotune && gemm.shape.contiguous();  // a trial has operands of its own
  std::vector<cublasLtMatmulHeuristicResult_t> found = blas->starting(compares ? kAlgorithms : 1);
  if (found.empty()) found = blas->starting(kAlgorithms);
  if (found.empty()) return nullptr;
  if (!compares) found.resize(1);
  blas->algorithm_ = choose(context, gemm, epilogue, workspace_bytes, found);
  // An algorithm that was measured for an equal shape may be refused here, because these operands are less aligned.
  if (found.size() > 1 && !blas->starts(blas->algorithm_)) blas->algorithm_ = found.front().algo;
  return blas;
}

cublasStatus_t BlasGemm::enqueue(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) const {
  const float one = 1, beta = gemm_.added != nullptr ? 1 : 0;
  return cublasLtMatmul(context_.cublas(), matmul_.get(), &one, gemm_.b, a_.get(), gemm_.a, b_.get(), &beta, c_data(),
                        c_.get(), gemm_.c, c_.get(), &algorithm, workspace_, workspace_bytes_, stream);
}

void BlasGemm::run(cudaStream_t stream) { check(enqueue(algorithm_, stream), "cublasLtMatmul"); }

}  // namespace prun::cuda
