// Completes what the command line leaves open, before anything starts.
#pragma once
#include "job/job_spec.h"

namespace prun {

// Chooses the network interface and the binding, reads the job's secret, and
// lists the settings that all nodes must have alike. Throws usage_error.
void settle_job(JobSpec& spec);

// Fills in what the views show of the job, `spec.watch`. An attempt does it again once it knows its first step.
void describe_to_views(JobSpec& spec);

}  // namespace prun
