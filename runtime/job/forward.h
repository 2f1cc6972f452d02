// Runs `prun eval` and `prun predict`: the forward pass of a plan's model with given weights, on this host's ranks.
#pragma once
#include "job/device_probe.h"
#include "job/job_spec.h"

namespace prun {

// Throws usage_error if an option is missing.
void check_forward_options(const JobSpec& spec);
// Prints the result, as JSON if WatchSpec::json, and returns the exit code. Throws Error for every problem found before
// ranks start; the file of a prediction exists only if it is whole.
int run_forward(JobSpec& spec, const DeviceReport& devices);

}  // namespace prun
