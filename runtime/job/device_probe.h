// Probes a device in a child process: a driver that hangs or crashes harms nobody, and CUDA, which must not be
// initialized before a fork, stays uninitialized in this process.
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

  const FoundDevice* find(int index) const;  // null: not described
};

// Peak FLOP/s of all described devices in bf16; 0 where one of them is unknown.
double peak_flops(const DeviceReport& report);

// Describes those of `devices` that exist, each once. What is wrong with the device is reported, not thrown; each of
// the two probes takes 20 s at most.
DeviceReport probe_device(const std::string& name, const std::vector<int>& devices);
DeviceReport probe_device(const std::string& name);  // describes all

}  // namespace prun
