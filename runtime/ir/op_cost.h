// The cost of an op in a program, by the types of its tensors.
#pragma once
#include "ir/program.h"

namespace prun {

Cost op_cost(const Program& program, const Op& op);

// Returns the FLOPs that a step of the model needs, however it is executed: the numerator of model FLOPs utilization.
//
// The formula is that of PaLM (Chowdhery et al. 2022, appendix B): the GEMMs of forward and backward, 2 FLOPs per
// multiply-add, without recomputation. Surprising fact: PaLM's 12·L·d·T for attention includes masked scores; here
// causal attention counts half of that, as in llm.c, so that only necessary work counts.
//
// An op's attribute `routed` is the share of an expert's slots that hold a token, as the others are neither computed
// nor counted. `replicas` is the number of ranks that compute the same op on the same values: it counts once for all of
// them.
double model_flops(const Program& program);  // one rank, one run of the step body
double model_flops(const Job& job);          // all ranks
// Returns the FLOPs of the model that the rank computes and that model_flops leaves to other ranks' share.
double replicated_flops(const Program& program);
double replicated_flops(const Job& job);

// Returns the bytes that one rank sends for one op by ring algorithms: all_gather and reduce_scatter (N-1)/N of the
// whole buffer, all_reduce twice that, rooted collectives at most the buffer (STRATEGIES: "Bytes sent per rank").
double wire_bytes(const Program& program, const Op& op);

}  // namespace prun
