// The cost of an op where it stands in a program: by the types of its tensors there.
#pragma once
#include "ir/program.h"

namespace prun {

Cost op_cost(const Program& program, const Op& op);

}  // namespace prun
