// Choice among the core's collective algorithms on a calibrated machine.
#pragma once
#include <string>

#include "ir/program.h"

namespace prun {

struct JobSpec;
// Node 0, after the plan is compiled: a run that resumes on its checkpoint's mesh reuses the algorithms of the
// checkpoint, so that losses remain bitwise identical. Returns a message for the user, one line, or "".
std::string settle_algorithms(JobSpec& spec, const Job& job);

// Returns "all_reduce direct, all_gather bruck and direct over socket; .." for transports that use the core's
// collectives; "" if nothing is calibrated.
std::string chosen_algorithms(const Job& job, const std::string& costs);

}  // namespace prun
