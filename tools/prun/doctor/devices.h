// Devices that compute: which are there, what they are, and whether ranks could use them.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "doctor/check.h"
#include "job/device_probe.h"

namespace prun::doctor {

std::vector<DeviceReport> probe_devices(const DoctorOptions& options);
Findings devices(const std::vector<DeviceReport>& reports);
nlohmann::json devices_json(const std::vector<DeviceReport>& reports);

}  // namespace prun::doctor
