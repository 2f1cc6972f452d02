// The axes that divide the data: the samples of a batch, or the tokens of each sample.
#include <algorithm>

#include "compile/draft.h"

namespace prun {

bool splits_data(const Plan& plan, const std::string& axis) {
  for (const Strategy& strategy : plan.strategies)
    if (strategy.splits != Splits::nothing &&
        std::find(strategy.axes.begin(), strategy.axes.end(), axis) != strategy.axes.end())
      return true;
  return false;
}

void find_data_axes(Draft& draft) {
  const Plan& plan = draft.plan;
  for (const std::string& axis : plan.batch_axes) draft.data_axes += (draft.data_axes.empty() ? "" : ",") + axis;
  for (const Axis& axis : plan.mesh.axes()) {
    if (!splits_data(plan, axis.name)) continue;
    draft.loss_axes.push_back(axis.name);
    draft.data_ranks *= axis.size;
  }
}

}  // namespace prun
