// The device that the cases of cuda_agreement_test compare.
#pragma once
#include "device/device.h"

namespace prun {

// The substitute's, or the plugin that PRUN_CUDA_PLUGIN names (cuda_agreement_test.cc).
const Device& cuda();

}  // namespace prun
