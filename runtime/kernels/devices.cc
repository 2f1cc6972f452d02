#include "kernels/devices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "device/plugin_device.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu_queue/cpu_queue.h"
#include "kernels/reference/reference_device.h"

namespace prun {
namespace {

struct DeviceEntry {
  const char* name;
  std::unique_ptr<Device> (*make)();
};

constexpr DeviceEntry kDevices[] = {
    {"cpu", make_cpu_device},
    {"reference", make_reference_device},
    {"cpu-queue", [] { return make_table_device(cpu_queue_table()); }},
};

}  // namespace

std::unique_ptr<Device> open_device(const std::string& name, const std::string& options) {
  for (const DeviceEntry& entry : kDevices) {
    if (name != entry.name) continue;
    if (!options.empty())
      throw usage_error(fmt::format("--device {} computes on the host: it takes no --device-options", name));
    return entry.make();
  }
  for (const DevicePluginFile& file : find_device_plugins())
    if (name == file.name) return make_table_device(load_device_plugin(file), {.options = options});
  for (const DevicePluginFile& file : unbuilt_device_plugins())
    if (name == file.name) throw usage_error(fmt::format("there is no device {}: {}", name, why_unbuilt(file)));
  throw usage_error("no device '" + name + "'" + did_you_mean(name, device_names()));
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const DeviceEntry& entry : kDevices) names.emplace_back(entry.name);
  for (const DevicePluginFile& file : find_device_plugins()) names.push_back(file.name);
  for (const DevicePluginFile& file : unbuilt_device_plugins())
    if (std::find(names.begin(), names.end(), file.name) == names.end()) names.push_back(file.name);
  return names;
}

}  // namespace prun
