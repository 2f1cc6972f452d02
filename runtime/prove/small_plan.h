// Shrinks a plan until it runs in a moment, and preserves everything that its compiled form distinguishes.
#pragma once
#include <string>
#include <vector>

#include "ir/plan.h"

namespace prun {

inline constexpr int kMostProvenRanks = 64;

// Returns candidate sizes for recording the plan again, smallest first: axes that keep every class of ranks, two more
// microbatches than stages, two samples each. There are several candidates because a schedule may require other
// numbers.
std::vector<PlanSizes> small_sizes(const Plan& plan);

// Returns the same sizes for one rank without strategies.
PlanSizes alone(PlanSizes sizes);

// Returns the number of ranks that the samples of a batch are split over.
int64_t batch_ranks(const Plan& plan, const std::map<std::string, int>& axes);

// Returns whether ranks split the tokens, so that each counts the expert choices of its own tokens.
bool splits_tokens(const Plan& plan);

enum class Shrink : uint8_t { nothing, layers, dims };  // each includes those before it

// Drops repeated units and shrinks dims, in `small` and in `others`, which differ from it in mesh and batch only.
// `real`: the original plan. Sizes that cannot shrink are unchanged; sizes in bytes (of buckets, for example) shrink
// proportionally. Expert capacities keep their share, or become unlimited if ranks count separately
// (known_differences.cc).
void shrink_model(const Plan& real, Shrink shrink, Plan& small, const std::vector<Plan*>& others);

// Sets the conditions under which one step reveals mistakes: random data and weights, no warm-up, clipped gradients, an
// evaluation after the step.
void set_conditions(Plan& plan);

// Returns the aspects that a proof does not cover although the ranks of a plan compute them differently from one rank:
// one noun phrase each, for "proven, apart from ..". Empty: the losses of the real plan differ only by the order of
// summation.
std::vector<std::string> known_differences(const Plan& plan);

// Shrinks the dims of all these plans, whose graphs differ in the batch only. Sizes that the axes of `real` divide
// remain divisible by those of `small`, the others remain indivisible if the relations permit it, and different sizes
// remain different.
void shrink_dims(const Plan& real, Plan& small, const std::vector<Plan*>& others);

// Drops units that repeat their predecessor in all these plans, which differ in mesh and batch. Keeps as many as
// pipeline stages, prefetched gathers and remainders need.
void drop_layers(Plan& small, const std::vector<Plan*>& others);

// Adapts the pipeline's listed layers, layout and recomputed stages to a plan with fewer stages and layers.
void share_layers(const Plan& real, Plan& small);

}  // namespace prun
