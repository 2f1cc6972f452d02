// What a proof does not cover although the ranks of a plan compute it otherwise than one rank does.
#pragma once
#include <string>
#include <vector>

#include "ir/plan.h"

namespace prun {

// One noun phrase each, for "proven, apart from ..". Empty: the losses of the real plan differ by the order of sums
// only.
std::vector<std::string> known_differences(const Plan& plan);

}  // namespace prun
