// prun version, prun --version. The commit is known only in builds from a clone.
#include "version.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "commit.h"
#include "device/plugin_device.h"
#include "job_options.h"
#include "kernels/devices.h"
#include "prun/device.h"
#include "prun/transport.h"

namespace prun {

std::string version_text() {
  const std::string commit = PRUN_COMMIT;
  return fmt::format("{}{}, transport ABI {}", PRUN_VERSION, commit.empty() ? "" : fmt::format(" (commit {})", commit),
                     PRUN_TRANSPORT_ABI);
}

namespace {

class Version final : public Command {
 public:
  void declare(OptionTable& /*table*/) override {}
  void take_operands(std::vector<std::string>& operands) override {
    if (!operands.empty()) throw usage_error(fmt::format("prun version takes nothing after it, not '{}'", operands[0]));
  }
  int run() override;
};

// Returns the devices that this prun was built without.
std::vector<DevicePluginFile> missing_devices() {
  const std::vector<DevicePluginFile> built = find_device_plugins();
  std::vector<DevicePluginFile> missing = unbuilt_device_plugins();
  std::erase_if(missing, [&](const auto& file) {
    return std::ranges::find(built, file.name, &DevicePluginFile::name) != built.end();
  });
  return missing;
}

int Version::run() {
  const std::vector<DevicePluginFile> missing = missing_devices();
  std::vector<std::string> devices = device_names();
  for (const DevicePluginFile& file : missing) std::erase(devices, file.name);
  const std::string commit = PRUN_COMMIT, compiler = fmt::format("GCC {}", __VERSION__);
  if (line_.json) {
    const nlohmann::ordered_json all = {{"prun", PRUN_VERSION},
                                        {"commit", commit},
                                        {"build", PRUN_BUILD_TYPE},
                                        {"compiler", compiler},
                                        {"transport_abi", PRUN_TRANSPORT_ABI},
                                        {"device_abi", PRUN_DEVICE_ABI},
                                        {"devices", devices}};
    fmt::print("{}\n", all.dump());
    return 0;
  }
  fmt::print("prun {}{}\n", PRUN_VERSION, commit.empty() ? "" : fmt::format(" (commit {})", commit));
  fmt::print("build      {}, {}\n", PRUN_BUILD_TYPE, compiler);
  fmt::print("ABI        transport {}, device {}\n", PRUN_TRANSPORT_ABI, PRUN_DEVICE_ABI);
  fmt::print("devices    {}\n", join(devices, ", "));
  for (const DevicePluginFile& file : missing) fmt::print("not built  {}: {}\n", file.name, why_unbuilt(file));
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_version() { return std::make_unique<Version>(); }

}  // namespace prun
