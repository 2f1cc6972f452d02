// A pipeline's stages as the plan lists them (Pipeline::layout).
#pragma once
#include "ir/plan.h"

namespace prun {

// Returns the stage of each call. Throws plan_error for a unit that the layout omits, repeats or places before what it
// reads, and for another number of stages than the mesh has.
Table<CallId, int> stages_of_layout(const Plan& plan, const Graph& graph);

}  // namespace prun
