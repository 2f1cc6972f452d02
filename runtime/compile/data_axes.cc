// Finds the axes that divide the data: the samples of a batch, or the tokens of each sample.
#include "compile/compile_state.h"

namespace prun {

void find_data_axes(CompileState& state) {
  const Plan& plan = state.plan;
  for (const std::string& axis : plan.batch_axes) state.data_axes += (state.data_axes.empty() ? "" : ",") + axis;
  for (const Axis& axis : plan.mesh.axes()) {
    if (!state.strategies.splits_data(axis.name)) continue;
    if (axis.size > 1) state.loss_axes.push_back(axis.name);
    state.data_ranks *= axis.size;
  }
}

}  // namespace prun
