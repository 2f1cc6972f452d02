// The axes that divide the data: the samples of a batch, or the tokens of each sample.
#include <algorithm>

#include "compile/compile_state.h"

namespace prun {

bool splits_data(const Plan& plan, const std::string& axis) {
  for (const Strategy& strategy : plan.strategies)
    if (strategy.splits != Splits::nothing &&
        std::find(strategy.axes.begin(), strategy.axes.end(), axis) != strategy.axes.end())
      return true;
  return false;
}

void find_data_axes(CompileState& state) {
  const Plan& plan = state.plan;
  for (const std::string& axis : plan.batch_axes) state.data_axes += (state.data_axes.empty() ? "" : ",") + axis;
  for (const Axis& axis : plan.mesh.axes()) {
    if (!splits_data(plan, axis.name)) continue;
    state.loss_axes.push_back(axis.name);
    state.data_ranks *= axis.size;
  }
}

}  // namespace prun
