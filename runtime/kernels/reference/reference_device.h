// The reference device: every compute op by plain loops in double. Fast devices are compared with it, and f64 plans run
// on it.
#pragma once
#include <memory>

#include "device/device.h"

namespace prun {

std::unique_ptr<Device> make_reference_device();

}  // namespace prun
