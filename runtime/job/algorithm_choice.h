// Which of the core's algorithms a job's collectives take, where this machine is calibrated.
#pragma once
#include <string>

#include "ir/program.h"

namespace prun {

struct JobSpec;
// Node 0, once the plan is compiled: a run that resumes on the mesh of its checkpoint takes its algorithms as that one
// took them, so that losses go on to the bit. Returns what the user should know of it, a whole line or nothing.
std::string settle_algorithms(JobSpec& spec, const Job& job);

// "all_reduce direct, all_gather bruck and direct over socket; .." for transports whose collectives are the core's; ""
// where nothing is calibrated.
std::string chosen_algorithms(const Job& job, const std::string& costs);

}  // namespace prun
