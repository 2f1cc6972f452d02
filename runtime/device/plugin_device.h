// Device plugins: found by name, loaded, and wrapped as a Device.
//
// Kernels of such a Device copy the host's arena to the device and back and wait for the end. They serve tests, which
// run one op at a time. The executor enqueues on Device::queue() instead.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace prun {

struct DevicePluginFile {
  std::string name, path;  // NAME.so
};

// Returns PRUN_DEVICE_PATH, then <prefix>/lib/prun/devices of the program.
std::vector<std::string> device_directories();
// Returns the plugins sorted by name. If two have one name, returns that of the first directory.
std::vector<DevicePluginFile> find_device_plugins();
// Returns devices that prun was built without, because a package was missing: NAME.missing, in place of NAME.so, has
// the reason.
std::vector<DevicePluginFile> unbuilt_device_plugins();
std::string why_unbuilt(const DevicePluginFile& file);
// Loads and checks a plugin; never unloads it. Throws Error(usage) with the file's name and one sentence per kind of
// fault.
const prun_device& load_device_plugin(const DevicePluginFile& file);

struct TableUse {
  int index = 0;  // index among the host's devices
  std::string options = {};
  bool captured = false;  // a kernel is captured when it is made; running it launches the graph
};
std::unique_ptr<Device> make_table_device(const prun_device& table, TableUse use = {});

}  // namespace prun
