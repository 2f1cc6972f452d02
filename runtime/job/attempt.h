// Runs a job: one attempt after another, as far as restarts allow.
#pragma once
#include "job/device_probe.h"
#include "job/job_spec.h"

namespace prun {

// Returns the exit code. `spec` is settled (settle.h). Throws Error for every problem found before ranks start.
int run_job(JobSpec& spec, const DeviceReport& devices);

}  // namespace prun
