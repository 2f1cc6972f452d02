// The list of devices. A new one is a folder here and a line in devices.cc, or a plugin behind prun/device.h.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace prun {

// Opens "cpu", "reference", "cpu-queue" or a plugin by its name. `options`: the value of --device-options; they choose
// kernels and thus the scratch. Throws usage_error for an unknown name, with the likely one, and for options of a
// device that takes none.
std::unique_ptr<Device> open_device(const std::string& name, const std::string& options = "");
// Returns the names of all devices, including those of plugins that are not built.
std::vector<std::string> device_names();

}  // namespace prun
