// Checks this host's devices for `prun PLAN --device NAME` before any rank starts, so that one message replaces those
// of N ranks.
#pragma once
#include "device_probe.h"
#include "ir/program.h"
#include "options.h"

namespace prun {

// Throws usage_error: no such device, its plugin or driver is not usable, or there are fewer of them than the ranks
// need. Devices whose memory is the host's are not counted, and their report is empty.
DeviceReport check_devices(const Options& options);
// The same checks on a report that exists already.
void require_devices(const Options& options, const DeviceReport& report);

// The transport for ranks that share devices: NCCL refuses them, so `auto` means host memory. Throws usage_error for
// nccl without its option share=1.
std::string transport_of_sharing_ranks(const Options& options);
// Throws usage_error where nccl.share=1 cannot work: another transport, several nodes, too many ranks on a device.
void check_nccl_share(const Options& options);

// The least bytes that a rank takes on its device: arena, two batches, tables. Transports and libraries take more,
// which is known only afterwards (DeviceUse).
int64_t needed_on_device(const Program& program);
// Throws Error(plan) where a device's ranks need more than is free there beside their contexts, and says what
// would fit; for that the plan is compiled once more, with ranks on all of this host's devices.
void check_device_memory(const Options& options, const Job& job, const DeviceReport& report);

}  // namespace prun
