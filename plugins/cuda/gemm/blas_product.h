// One call of cuBLASLt, with all that can be decided before: descriptors, and the algorithm.
//
// Surprising fact: cuBLASLt is column-major, and a row-major matrix is its transpose there. So Cᵀ = op(B)ᵀ·op(A)ᵀ is
// asked for, without moving anything: our B is its A, our n its m.
//
// A sum that grows is its C with beta = 1. The f32 accumulators of a tile are complete by then, so that the bits are
// those of the product and an add, by the same algorithm.
//
// Every algorithm gives the same bits in every run: where k is split, the parts are f32 in the workspace and added in a
// fixed order; sums in C itself are refused (CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK). Which algorithm the heuristic
// names is a function of the sizes, the GPU and the library, so ranks on GPUs of one kind compute alike.
#pragma once
#include <cublasLt.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "gemm.h"

namespace prun::cuda {

struct Epilogue {
  cublasLtEpilogue_t kind = CUBLASLT_EPILOGUE_DEFAULT;
  const void* vector = nullptr;  // the bias, or where its gradient goes
  const void* matrix = nullptr;  // gelu's input: kept there, or read
};

class BlasProduct final : public Kernel {
 public:
  // Null where cuBLASLt has no algorithm for it.
  static std::unique_ptr<BlasProduct> find(Context& context, const Gemm& gemm, const Epilogue& epilogue,
                                           void* workspace, size_t workspace_bytes);
  // Without an algorithm yet.
  BlasProduct(Context& context, const Gemm& gemm, const Epilogue& epilogue, void* workspace, size_t workspace_bytes);
  // The heuristic's that pass cuBLASLt's check, the best first by its estimate; empty: there is none.
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms(int most) const;
  // The same from the first on that cuBLASLt takes when it is launched.
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

  static Layout layout(int dtype, int64_t rows, int64_t columns, int64_t batch);
  void describe(const Epilogue& epilogue);
  bool starts(const cublasLtMatmulAlgo_t& algorithm) const;
  const void* c_data() const { return gemm_.added != nullptr ? gemm_.added : gemm_.c; }

  Context& context_;
  Gemm gemm_;
  bool fused_;
  void* workspace_;
  size_t workspace_bytes_;
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product_;
  Layout a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace prun::cuda
