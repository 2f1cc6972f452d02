// The warning for a job whose ranks compute on several device models or library versions: results differ in rounding
// from those on one kind, and each step takes as long as on the slowest.
#pragma once
#include <string>
#include <vector>

#include "job/device_probe.h"

namespace prun {

// Returns "NVIDIA H200 (sm_90) with cuBLASLt 13.1.0, cuDNN 9.19.0".
std::string describe_device(const DeviceReport& report, int index);

// Returns one line; `descriptions` by rank. "" if all are equal.
std::string heterogeneity_warning(const std::vector<std::string>& descriptions);

}  // namespace prun
