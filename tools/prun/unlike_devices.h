// Ranks on devices of several models, or with several versions of their libraries: the job runs, but computes what it
// would on neither, and as quickly as on the slowest. Somebody should say so.
#pragma once
#include <string>
#include <vector>

#include "device_probe.h"

namespace prun {

// What a rank computes on: "NVIDIA H200 (sm_90) with cuBLASLt 13.1.0, cuDNN 9.19.0".
std::string device_words(const DeviceReport& report, int index);

// One line about all ranks, of which rank i computes on words[i]; "" where all are alike.
std::string unlike_devices(const std::vector<std::string>& words);

}  // namespace prun
