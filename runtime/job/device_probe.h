// Probes a device in a child process, so that a hanging or crashing driver harms only the child. CUDA, which must not
// be initialized before a fork, remains uninitialized in this process.
#pragma once
#include <string>
#include <vector>

#include "prun/health.h"

namespace prun {

struct FoundDevice {
  int index = 0;
  prun_device_info info{};
  std::string problem;  // "" if it is usable
  prun_health_report health{};
};

struct DeviceReport {
  std::string name, version, summary;
  int mem_kind = PRUN_MEM_HOST;
  prun_device_probe probe{};
  std::string problem;  // "" if devices of this name are usable
  std::vector<FoundDevice> devices;

  const FoundDevice* find(int index) const;  // null: not described
};

// Returns the peak FLOP/s of all described devices in bf16; 0 if one of them is unknown.
double peak_flops(const DeviceReport& report);

// Describes those of `devices` that exist, each once. Problems with the device are reported, not thrown; each of the
// two probes takes at most 20 s.
DeviceReport probe_device(const std::string& name, const std::vector<int>& devices);
DeviceReport probe_device(const std::string& name);  // describes all

}  // namespace prun
