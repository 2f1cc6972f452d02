// Expert parallelism: experts of a layer spread over an axis that also divides the batch.
#pragma once
#include "compile/compile_state.h"

namespace prun {

// Puts the exchanges of tokens around experts that are split over an axis of the batch, and sums the experts' loads
// over all ranks for the balancing loss.
void split_experts(CompileState& state);

// Rules of distribute.cc for experts that are split over their first dim.
class Distributor;
void expert_linear(Distributor& d, const Node& node);
void combine(Distributor& d, const Node& node);

}  // namespace prun
