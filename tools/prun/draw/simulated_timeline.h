// A plan's step as `prun sim` predicts it on a cluster, as a timeline: of the first rank of each class of ranks that
// move in step there.
#pragma once
#include "draw/timeline.h"
#include "ir/program.h"
#include "simulate/simulate.h"

namespace prun::draw {

// Of a simulation that kept its spans.
Timeline simulated_timeline(const Job& job, const simulate::Simulation& simulation);

}  // namespace prun::draw
