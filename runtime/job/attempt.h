// Runs a job to its end: attempt after attempt, as restarts allow.
#pragma once
#include "job/device_probe.h"
#include "job/job_spec.h"

namespace prun {

// Returns the exit code. `spec` is settled (settle.h). Throws Error for all that is found before ranks start.
int run_job(JobSpec& spec, const DeviceReport& devices);

}  // namespace prun
