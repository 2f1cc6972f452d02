// One GEMM by cuBLASLt, with everything that can be decided in advance: descriptors and the algorithm.
//
// Surprising fact: cuBLASLt is column-major, where a row-major matrix is its transpose. So the call computes
// Cᵀ = op(B)ᵀ·op(A)ᵀ and moves no data: our B is its A, our n its m.
//
// Accumulation over microbatches uses its C with beta = 1. The f32 accumulators of a tile are complete by then, so the
// result is bitwise identical to the GEMM and an add, by the same algorithm.
//
// Every algorithm is bitwise identical in every run: a split-K keeps partial sums as f32 in the workspace and adds them
// in a fixed order; reductions in C itself are excluded (CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK). The heuristic's
// choice is a function of the sizes, the GPU and the library, so ranks on GPUs of one kind compute alike.
#pragma once
#include <cublasLt.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "gemm.h"

namespace prun::cuda {

struct Epilogue {
  cublasLtEpilogue_t kind = CUBLASLT_EPILOGUE_DEFAULT;
  const void* vector = nullptr;  // the bias, or the destination of its gradient
  const void* matrix = nullptr;  // gelu's input: written there, or read
};

class BlasGemm final : public Kernel {
 public:
  // Returns null if cuBLASLt has no algorithm for the GEMM.
  static std::unique_ptr<BlasGemm> find(Context& context, const Gemm& gemm, const Epilogue& epilogue, void* workspace,
                                        size_t workspace_bytes);
  // Creates the descriptors; selects no algorithm yet.
  BlasGemm(Context& context, const Gemm& gemm, const Epilogue& epilogue, void* workspace, size_t workspace_bytes);
  // Returns the heuristic's algorithms that pass cuBLASLt's check, best first by its estimate; may be empty.
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms(int most) const;
  // Returns algorithms() from the first one on that cuBLASLt accepts at launch.
  std::vector<cublasLtMatmulHeuristicResult_t> starting(int most) const;
  cublasStatus_t enqueue(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) const;
  void run(cudaStream_t stream) override;
  const cublasLtMatmulAlgo_t& algorithm() const { return algorithm_; }

 private:
  template <class T, cublasStatus_t (*destroy)(T)>
  struct Destroy {
    void operator()(T handle) const { destroy(handle); }
  };
  template <class T, cublasStatus_t (*destroy)(T)>
  using Handle = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T, destroy>>;
  using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  static Layout layout(int dtype, int64_t rows, int64_t columns, int64_t batch, const MatrixStrides& strides);
  void describe(const Epilogue& epilogue);
  bool starts(const cublasLtMatmulAlgo_t& algorithm) const;
  const void* c_data() const { return gemm_.added != nullptr ? gemm_.added : gemm_.c; }

  Context& context_;
  Gemm gemm_;
  bool fused_;
  void* workspace_;
  size_t workspace_bytes_;
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> matmul_;
  Layout a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace prun::cuda
