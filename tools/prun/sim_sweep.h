// prun sim --sweep tp=1,2,4: every combination of the plan's arguments, the fastest first.
#pragma once
#include <string>

#include "options.h"
#include "simulate/cluster.h"

namespace prun {

// "tp=1,2,4" of that option. Throws usage_error.
void read_sweep(SweepValues& values, const std::string& option, const std::string& text);

void sweep(const Options& options, const simulate::Cluster& cluster);  // prints

}  // namespace prun
