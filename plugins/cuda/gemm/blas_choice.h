// Chooses an algorithm among those of cuBLASLt's heuristic: the first, or with the option autotune=1 the fastest
// measured one. Also decides whether a bias gradient is computed in the epilogue of its GEMM.
//
// Surprising fact: only algorithms whose results are twice bitwise identical to the first one's are compared, on
// numbers that reveal the order of additions and on others that check the epilogue. Ranks measure independently and may
// choose differently, but results that several of them compute must be identical; so measured times never affect
// results.
#pragma once
#include <cublasLt.h>

#include <vector>

#include "blas_gemm.h"

namespace prun::cuda {

// Returns an algorithm of `found`, which must not be empty. Allocates memory for the measurement; without enough memory
// returns the first.
cublasLtMatmulAlgo_t choose(Context& context, const Gemm& gemm, const Epilogue& epilogue, size_t workspace_bytes,
                            const std::vector<cublasLtMatmulHeuristicResult_t>& found);

// Returns whether `fused`, which computes gemm.sums in its epilogue, is faster than `apart` followed by a kernel for
// the column sums, with bitwise identical results of both. Returns false if there is not enough memory to measure.
bool fused_sums_win(Context& context, const Gemm& gemm, const Epilogue& epilogue, const BlasGemm& fused,
                    const BlasGemm& apart, size_t workspace_bytes);

}  // namespace prun::cuda
