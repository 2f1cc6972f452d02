// Fewer units of a class: a model of 96 equal blocks becomes one of a few.
#pragma once
#include "ir/plan.h"

namespace prun {

// Drops, in both plans, units that repeat the one before them, and keeps as many as stages of a pipeline, gathers that
// run ahead and remainders need.
void drop_layers(Plan& small, Plan& one);

}  // namespace prun
