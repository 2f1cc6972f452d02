// A plan made small enough to run in a moment, with all that its compiled form distinguishes kept.
#pragma once
#include <vector>

#include "ir/plan.h"
#include "ir/plan_sizes.h"

namespace prun {

inline constexpr int kMostProvenRanks = 64;

// Sizes with which to record the plan again, the smallest first: axes that keep every class of ranks, two microbatches
// more than stages, two samples of each. Schedules may want other numbers, so there are several.
std::vector<PlanSizes> small_sizes(const Plan& plan);

// The same on one rank without strategies.
PlanSizes alone(PlanSizes sizes);

// Drops repeated units and makes dims small, in both plans, which differ in mesh and batch only. `real`: the plan as it
// is. What cannot be made smaller stays.
void shrink_model(const Plan& real, Plan& small, Plan& one);

// What a run of one step needs to show mistakes: random data and weights, no warm-up, gradients that are clipped, an
// evaluation after the step.
void set_conditions(Plan& plan);

}  // namespace prun
