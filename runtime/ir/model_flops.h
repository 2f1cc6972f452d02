// How many FLOPs a step of the model takes, whatever it takes to run it: the numerator of model FLOPs utilization.
//
// As in PaLM (Chowdhery et al. 2022, appendix B): matrix products of forward and backward, each multiply-add two;
// what backward computes again does not count. Surprising fact: PaLM's 12·L·d·T for attention counts masked scores,
// too; here causal attention is half of that, as in llm.c, so that no figure looks better than the work that was
// needed.
#pragma once
#include "ir/program.h"

namespace prun {

double model_flops(const Program& program);  // one rank's, of one run of the step body
double model_flops(const Job& job);          // all ranks'

}  // namespace prun
