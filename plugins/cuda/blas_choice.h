// Which of the algorithms that cuBLASLt's heuristic names is taken: the first, or with the option autotune=1 the
// fastest that was measured.
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

}  // namespace prun::cuda
