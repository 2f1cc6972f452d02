// The CPU device: oneDNN computes some of the GEMMs, kernels of our own everything else.
#pragma once
#include <memory>

#include "device/device.h"

namespace prun {

std::unique_ptr<Device> make_cpu_device();

// Device::workspace_bytes for an op that came through prun/device.h instead of from one of prun's programs.
int64_t cpu_workspace_bytes(const RankMemory& memory, const Op& op, int threads);

}  // namespace prun
