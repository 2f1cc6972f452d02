// What runtime/prove says of a plan, for the screen: under --prove whatever it takes, otherwise where it takes a
// moment.
#pragma once
#include <string>

#include "ir/plan.h"
#include "options.h"

namespace prun {

// One sentence: what was proven, or why nothing was. Throws plan_error at the first difference; under --prove, where
// nothing could be proven, Error(check_failed).
std::string prove_plan(const Options& options, const Plan& plan, int ranks);

}  // namespace prun
