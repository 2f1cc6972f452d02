// Writes a simulated step as a timeline, in the format of a run's trace: one process for the first rank of each class.
#pragma once
#include <string>

#include "simulate/simulate.h"

namespace prun {

void write_simulated_trace(const std::string& path, const Job& job, const simulate::Simulation& simulation);

}  // namespace prun
