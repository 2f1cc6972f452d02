// load and store where the device computes in the host's memory: a copy from one arena to the other.
#pragma once
#include <memory>

#include "device/device.h"

namespace prun {

std::unique_ptr<Kernel> make_transfer_kernel(const RankMemory& memory, const Op& op);

}  // namespace prun
