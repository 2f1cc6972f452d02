// init = prun.init.from { path = ... }: whether the weights there are those of the plan's model.
#pragma once
#include "ir/plan.h"

namespace prun {

// Throws checkpoint_invalid at the plan's line, with both sides. `whole`: reads all of a checkpoint and compares its
// SHA-256.
void require_weights_fit(const Plan& plan, bool whole);

}  // namespace prun
