// The reference device: every compute op by plain loops in double. The yardstick that fast devices are measured by,
// and the device of f64 plans.
#pragma once
#include <memory>

#include "device/device.h"

namespace prun {

std::unique_ptr<Device> make_reference_device();

}  // namespace prun
