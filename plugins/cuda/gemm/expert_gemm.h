// GEMMs of experts that skip the slots without a token.
#pragma once
#include "gemm.h"

namespace prun::cuda {

// Returns whether make_expert_gemm has a kernel for the sizes, types and pointers.
bool takes_expert_gemm(const Gemm& gemm, int capability);

// The rows of A of an expert are equal runs, one for each source. `counts` [batch, sources] has the number of rows of a
// run that have a token; the other rows are zeros. Round r counts from r times the rows of a run on.
std::unique_ptr<Kernel> make_expert_gemm(const Gemm& gemm, const int32_t* counts, int64_t sources, int64_t round);

}  // namespace prun::cuda
