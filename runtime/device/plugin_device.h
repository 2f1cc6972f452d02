// Device plugins: found by name, loaded, and seen as a Device.
//
// Kernels of such a Device copy the host's arena to the device and back and wait for the end: for tests, which run one
// op at a time. The executor enqueues on Device::queue() instead.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace prun {

struct DevicePluginFile {
  std::string name, path;  // NAME.so
};

// PRUN_DEVICE_PATH, then <prefix>/lib/prun/devices beside the program.
std::vector<std::string> device_directories();
// By name; of two with one name the first directory's.
std::vector<DevicePluginFile> find_device_plugins();
// Devices that prun was built without, for a package was missing: NAME.missing lies where NAME.so would, and says why.
std::vector<DevicePluginFile> unbuilt_device_plugins();
std::string why_unbuilt(const DevicePluginFile& file);
// Loads and checks; stays loaded. Throws Error(usage), one sentence with the file's name for each way to be wrong.
const prun_device& load_device_plugin(const DevicePluginFile& file);

struct TableUse {
  int index = 0;  // which of the host's devices
  std::string options = {};
  bool captured = false;  // a kernel is captured when it is made; running it launches the graph
};
std::unique_ptr<Device> make_table_device(const prun_device& table, TableUse use = {});

}  // namespace prun
