// What a device says of itself, asked in a process of its own: a driver that hangs or crashes harms nobody, and CUDA,
// which must not be touched before a fork, stays untouched here.
#pragma once
#include <string>
#include <vector>

#include "prun/health.h"

namespace prun {

struct FoundDevice {
  int index = 0;
  prun_device_info info{};
  std::string problem;  // "" when it can be used
  prun_health_report health{};
};

struct DeviceReport {
  std::string name, version, summary;
  int mem_kind = PRUN_MEM_HOST;
  prun_device_probe probe{};
  std::string problem;  // "" when devices of this name can be used
  std::vector<FoundDevice> devices;
};

// What all described devices can do together, in bf16; 0 where it is not known of one.
double peak_flops(const DeviceReport& report);

// `devices`: described are those of them that exist; the same number twice is asked once. Never throws for what is
// wrong with the device; takes 20 s at most for each of the two questions.
DeviceReport probe_device(const std::string& name, const std::vector<int>& devices);
DeviceReport probe_device(const std::string& name);  // describes all

}  // namespace prun
