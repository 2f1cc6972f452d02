// The list of devices; a new one is a folder and one line here.
#include "device/device.h"

#include "base/error.h"
#include "base/text.h"
#include "device/cpu/cpu_device.h"
#include "device/reference/reference_device.h"

namespace prun {
namespace {

struct DeviceEntry {
  const char* name;
  std::unique_ptr<Device> (*make)();
};

constexpr DeviceEntry kDevices[] = {
    {"cpu", make_cpu_device},
    {"reference", make_reference_device},
};

}  // namespace

std::unique_ptr<Device> open_device(const std::string& name) {
  for (const DeviceEntry& entry : kDevices) {
    if (name == entry.name) return entry.make();
  }
  throw usage_error("no device '" + name + "'" + did_you_mean(name, device_names()));
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const DeviceEntry& entry : kDevices) names.emplace_back(entry.name);
  return names;
}

}  // namespace prun
