// A plan made small enough to run in a moment, with all that its compiled form distinguishes kept.
#pragma once
#include <string>
#include <vector>

#include "ir/plan.h"

namespace prun {

inline constexpr int kMostProvenRanks = 64;

// Sizes with which to record the plan again, the smallest first: axes that keep every class of ranks, two microbatches
// more than stages, two samples of each. Schedules may want other numbers, so there are several.
std::vector<PlanSizes> small_sizes(const Plan& plan);

// The same on one rank without strategies.
PlanSizes alone(PlanSizes sizes);

// Over how many ranks the samples of a batch are spread.
int64_t batch_ranks(const Plan& plan, const std::map<std::string, int>& axes);

// Whether several ranks have tokens of their own, whose choices of experts each of them counts by itself.
bool splits_tokens(const Plan& plan);

enum class Shrink : uint8_t { nothing, layers, dims };  // each with those before it

// Drops repeated units and makes dims small, in `small` and in the others, which differ from it in mesh and batch only.
// `real`: the plan as it is. Sizes that cannot be smaller stay; sizes in bytes, of buckets for example, shrink along.
// Expert capacities keep their share, and are unlimited where ranks count by themselves (known_differences.h).
void shrink_model(const Plan& real, Shrink shrink, Plan& small, const std::vector<Plan*>& others);

// What a run of one step needs to show mistakes: random data and weights, no warm-up, gradients that are clipped, an
// evaluation after the step.
void set_conditions(Plan& plan);

// What a proof does not cover although the ranks of a plan compute it otherwise than one rank does: one noun phrase
// each, for "proven, apart from ..". Empty: the losses of the real plan differ by the order of sums
// only.
std::vector<std::string> known_differences(const Plan& plan);

// Shrinks all these plans, whose graphs differ in the batch only. Sizes that the axes of `real` divide stay divided by
// those of `small`, the others stay undivided if the relations permit it, and different sizes stay different.
void shrink_dims(const Plan& real, Plan& small, const std::vector<Plan*>& others);

// Drops, in all these plans, which differ in mesh and batch, units that repeat the one before them; keeps as many as
// stages of a pipeline, gathers that run ahead and remainders need.
void drop_layers(Plan& small, const std::vector<Plan*>& others);

}  // namespace prun
