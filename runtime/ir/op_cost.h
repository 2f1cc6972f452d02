// The cost of an op where it stands in a program: by the types of its tensors there.
#pragma once
#include "ir/program.h"

namespace prun {

Cost op_cost(const Program& program, const Op& op);

// How many FLOPs a step of the model takes, whatever it takes to run it: the numerator of model FLOPs utilization.
//
// As in PaLM (Chowdhery et al. 2022, appendix B): matrix products of forward and backward, each multiply-add two;
// what backward computes again does not count. Surprising fact: PaLM's 12·L·d·T for attention counts masked scores,
// too; here causal attention is half of that, as in llm.c, so that no figure looks better than the work that was
// needed.
double model_flops(const Program& program);  // one rank's, of one run of the step body
double model_flops(const Job& job);          // all ranks'

// Bytes that one rank sends in one op, as a ring would: all_gather and reduce_scatter (N-1)/N of the whole buffer,
// all_reduce twice that, rooted collectives at most the buffer (STRATEGIES: "Bytes sent per rank").
double wire_bytes(const Program& program, const Op& op);

}  // namespace prun
