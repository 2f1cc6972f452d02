// The CPU device: kernels on oneDNN (matrix products) and on loops of our own (everything else).
#pragma once
#include <memory>

#include "device/device.h"

namespace prun {

std::unique_ptr<Device> make_cpu_device();

// Device::workspace_bytes for an op that is not of a program of prun's, but came through prun/device.h.
int64_t cpu_workspace_bytes(const RankMemory& memory, const Op& op, int threads);

}  // namespace prun
