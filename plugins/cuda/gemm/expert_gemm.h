// GEMMs of experts that skip the slots without a token.
#pragma once
#include "gemm.h"

namespace prun::cuda {

// Returns whether make_expert_gemm has a kernel for the sizes, types and pointers.
bool takes_expert_gemm(const Gemm& gemm, int capability);

// `counts` [batch, sources]: how many of the rows of each source of an expert, equal runs of A's rows as stored, have a
// token; the others are zeros.
std::unique_ptr<Kernel> make_expert_gemm(const Gemm& gemm, const int32_t* counts, int64_t sources);

}  // namespace prun::cuda
