// prun sim --sweep tp=1,2,4: every combination of the plan's arguments, the fastest first.
#pragma once
#include "sim_options.h"
#include "simulate/cluster.h"

namespace prun {

void sweep(const JobSpec& job, const SimSettings& settings, bool json, const simulate::Cluster& cluster);  // prints

}  // namespace prun
