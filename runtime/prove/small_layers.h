// Fewer units of a class: a model of 96 equal blocks becomes one of a few.
#pragma once
#include <vector>

#include "ir/plan.h"

namespace prun {

// Drops, in all these plans, which differ in mesh and batch, units that repeat the one before them; keeps as many as
// stages of a pipeline, gathers that run ahead and remainders need.
void drop_layers(Plan& small, const std::vector<Plan*>& others);

}  // namespace prun
