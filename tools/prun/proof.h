// --prove: what runtime/prove says of a plan, for the screen.
#pragma once
#include <string>

#include "ir/plan.h"
#include "options.h"

namespace prun {

// One sentence on what was proven, or on why nothing was. Throws plan_error at the first difference.
std::string prove_plan(const Options& options, const Plan& plan, int ranks);

}  // namespace prun
