// Checks this host's devices for `prun PLAN --device NAME` before any rank starts, so that one message replaces those
// of N ranks.
#pragma once
#include "ir/program.h"
#include "job/device_probe.h"
#include "job/job_spec.h"

namespace prun {

// Throws usage_error: no such device, its plugin or driver is not usable, or there are fewer of them than the ranks
// need. Devices whose memory is the host's are not counted, and their report is empty.
DeviceReport check_devices(const JobSpec& spec);
// The same checks on a report that exists already.
void require_devices(const JobSpec& spec, const DeviceReport& report);

// The least bytes that a rank takes on its device: arena, two batches, tables. Transports and libraries take more,
// which is known only afterwards (DeviceUse).
int64_t needed_on_device(const Program& program);
// Throws Error(plan) where a device's ranks need more than is free there beside their contexts, and says what
// would fit; for that the plan is compiled once more, with ranks on all of this host's devices.
void check_device_memory(const JobSpec& spec, const Job& job, const DeviceReport& report);

}  // namespace prun
