// The warning for a job whose ranks compute on several device models, or with several library versions: results differ
// in their last bits from those on one kind, and each step takes as long as on the slowest.
#pragma once
#include <string>
#include <vector>

#include "job/device_probe.h"

namespace prun {

// "NVIDIA H200 (sm_90) with cuBLASLt 13.1.0, cuDNN 9.19.0".
std::string describe_device(const DeviceReport& report, int index);

// One line; `descriptions` by rank. "" where all are alike.
std::string heterogeneity_warning(const std::vector<std::string>& descriptions);

}  // namespace prun
