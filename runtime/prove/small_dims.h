// Small dims for a model: each size of a parameter, an input or an attribute becomes a smaller one, equal sizes equal
// ones, so that every op's shape rule still holds.
#pragma once
#include <vector>

#include "ir/plan.h"

namespace prun {

// Of all these plans, whose graphs differ in the batch only. Keeps what the axes of `real` divide divided by those of
// `small` and the rest undivided, and different sizes different.
void shrink_dims(const Plan& real, Plan& small, const std::vector<Plan*>& others);

// Types of all values from those of inputs and parameters. Throws plan_error where an op's inputs do not fit.
void infer_types(Graph& graph);

}  // namespace prun
