#pragma once
#include "job/job_spec.h"

namespace prun {

// prun plugins --explain, for the job's ranks a host and hosts, two of each if there are fewer. Throws as
// choose_interface.
int explain_plugins(const JobSpec& job, bool json);

}  // namespace prun
