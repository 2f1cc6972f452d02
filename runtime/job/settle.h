// Completes the options that the command line leaves open, before anything starts.
#pragma once
#include <string>

#include "job/job_spec.h"

namespace prun {

// Chooses the network interface and the binding, reads the job's secret, and lists the settings that all nodes must
// share. Throws usage_error.
void settle_job(JobSpec& spec);

// Completes the options of a command that runs ranks on this host and trains nothing. Throws usage_error.
void settle_alone(JobSpec& spec, const std::string& command);

// Returns the commands that repeat the job or check its plan: plan, ranks, settings, device and transport.
JobCommand command_of(const JobSpec& spec);

// Fills in `spec.watch`, the views' description of the job. An attempt repeats it once its first step is known.
void describe_to_views(JobSpec& spec);

}  // namespace prun
