// Small dims for a model: each size of a parameter, an input or an attribute becomes a smaller one, and every relation
// that the graph has between sizes still holds.
#pragma once
#include <vector>

#include "ir/plan.h"

namespace prun {

// Shrinks all these plans, whose graphs differ in the batch only. Sizes that the axes of `real` divide stay divided by
// those of `small`, the others stay undivided if the relations permit it, and different sizes stay different.
void shrink_dims(const Plan& real, Plan& small, const std::vector<Plan*>& others);

}  // namespace prun
