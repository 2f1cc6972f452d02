// Checks this host's devices for `prun PLAN --device NAME` before any rank starts, so that one message replaces N.
#pragma once
#include "ir/program.h"
#include "job/device_probe.h"
#include "job/job_spec.h"

namespace prun {

// Throws usage_error if there is no such device, its plugin or driver is unusable, or there are too few for the ranks.
// Devices in host memory are not counted and have an empty report.
DeviceReport check_devices(const JobSpec& spec);
// Performs the same checks on an existing report.
void require_devices(const JobSpec& spec, const DeviceReport& report);

// Returns the minimum bytes of a rank on its device: arena, two batches, tables. Transports and libraries need more,
// which is known only after the run (DeviceUse).
int64_t needed_on_device(const Program& program);
// Throws Error(plan) if a device's ranks need more memory than is free besides their contexts. The message suggests a
// fitting --nproc, for which the plan is compiled again with ranks on all of this host's devices.
void check_device_memory(const JobSpec& spec, const Job& job, const DeviceReport& report);

}  // namespace prun
