// GEMMs of experts that skip the slots without a token.
#pragma once
#include "gemm.h"

namespace prun::cuda {

// Returns whether make_expert_gemm has a fast kernel for the sizes, types and pointers.
bool takes_expert_gemm(const Gemm& gemm);

// The rows of A of an expert are equal runs, one for each source. The op's read 2, [batch, sources], has the number of
// rows of a run that have a token in all rounds; the others are not read, and rows of C without one become zeros.
// Round r counts from r times the rows of a run on. A later round leaves the rows of experts without any token as they
// are; sums over rows become zeros, or `added`.
std::unique_ptr<Kernel> make_expert_gemm(const OpView& view, const Gemm& gemm);

}  // namespace prun::cuda
