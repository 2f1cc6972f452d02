// Which of the algorithms that cuBLASLt's heuristic names is taken: the first, or with the option autotune=1 the
// fastest that was measured; and whether a bias gradient is an epilogue of its GEMM.
//
// Surprising fact: only algorithms that give the same bits as the first, twice, on numbers that show in which order
// they add and on others that show what follows the sums, are compared. Ranks measure on their own and may choose
// differently, and what several of them compute alike has to stay alike; so time never decides about bits.
#pragma once
#include <cublasLt.h>

#include <vector>

#include "blas_product.h"

namespace prun::cuda {

// `found` is not empty. Asks for memory of its own for the measurement; where that is missing, the first.
cublasLtMatmulAlgo_t choose(Context& context, const Gemm& gemm, const Epilogue& epilogue, size_t workspace_bytes,
                            const std::vector<cublasLtMatmulHeuristicResult_t>& found);

// Whether `fused`, which computes gemm.sums in its epilogue, takes less time than `apart`, which does not, with a
// kernel for the column sums after it, and gives the same bits of both. No: not measured, for lack of memory.
bool fused_sums_win(Context& context, const Gemm& gemm, const Epilogue& epilogue, const BlasProduct& fused,
                    const BlasProduct& apart, size_t workspace_bytes);

}  // namespace prun::cuda
