// The CPU device: kernels on oneDNN (matrix products) and on loops of our own (everything else).
#pragma once
#include <memory>

#include "device/device.h"

namespace prun {

std::unique_ptr<Device> make_cpu_device();

}  // namespace prun
