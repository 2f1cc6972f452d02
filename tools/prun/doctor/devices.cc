// Probes each plugin in a child process. A device that was not built, or that has no driver here, is absent; with
// `--device NAME` that is a failure.
#include "kernels/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "device/plugin_device.h"
#include "doctor/check.h"

namespace prun::doctor {
namespace {

// Probes a plugin; for a device that was not built, returns its requirements.
DeviceReport report_of(const std::string& name, const std::vector<DevicePluginFile>& plugins) {
  if (std::any_of(plugins.begin(), plugins.end(), [&](const DevicePluginFile& file) { return file.name == name; }))
    return probe_device(name);
  DeviceReport report;
  report.name = name;
  try {
    open_device(name);
  } catch (const Error& error) {
    report.problem = error.message();
  }
  return report;
}

// Returns "ECC on; NVLink to GPU 1; a context takes 400 MiB of it".
std::string facts_of(const FoundDevice& device) {
  std::string facts = device.health.facts;
  if (device.health.context_bytes > 0)
    facts += fmt::format("{}a context takes {} of it", facts.empty() ? "" : "; ",
                         human_bytes(static_cast<int64_t>(device.health.context_bytes)));
  return facts;
}

Finding device_finding(const DeviceReport& report) {
  const bool plugin = !report.version.empty();
  if (!report.problem.empty()) return {report.name, Status::absent, "cannot be used: " + report.problem};
  Finding found{report.name, Status::ok, plugin ? report.summary : "always there"};
  if (!plugin) return found;
  const std::string driver = report.probe.driver;
  found.details.push_back(
      fmt::format("driver {}; {}; {}", driver.empty() ? "none" : driver, report.probe.runtime, report.probe.libraries));
  for (const FoundDevice& device : report.devices) {
    const std::string state =
        !device.problem.empty()
            ? "cannot be used: " + device.problem
            : fmt::format("{}, {}, {} of {} free, {}", device.info.name, device.info.architecture,
                          human_bytes(static_cast<int64_t>(device.info.free_bytes)),
                          human_bytes(static_cast<int64_t>(device.info.total_bytes)), device.info.id);
    if (!device.problem.empty()) found.status = Status::warn;
    found.details.push_back(fmt::format("{}:{}  {}", report.name, device.index, state));
    if (const std::string facts = facts_of(device); !facts.empty()) found.details.push_back("        " + facts);
    for (const std::string& advice : split(device.health.advice, '\n')) {
      found.status = Status::warn;
      found.details.push_back("        ! " + advice);
    }
  }
  return found;
}

nlohmann::json device_json(const DeviceReport& report) {
  nlohmann::json devices = nlohmann::json::array();
  for (const FoundDevice& device : report.devices)
    devices.push_back({{"index", device.index},
                       {"name", device.info.name},
                       {"architecture", device.info.architecture},
                       {"id", device.info.id},
                       {"total_bytes", device.info.total_bytes},
                       {"free_bytes", device.info.free_bytes},
                       {"peak_flops_bf16", device.info.peak_flops_bf16},
                       {"context_bytes", device.health.context_bytes},
                       {"exclusive", device.health.exclusive != 0},
                       {"facts", device.health.facts},
                       {"advice", split(device.health.advice, '\n')},
                       {"problem", device.problem}});
  return {{"name", report.name},
          {"version", report.version},
          {"summary", report.summary},
          {"driver", report.probe.driver},
          {"runtime", report.probe.runtime},
          {"libraries", report.probe.libraries},
          {"problem", report.problem},
          {"devices", devices}};
}

}  // namespace

std::vector<DeviceReport> probe_devices(const DoctorOptions& options) {
  std::vector<DeviceReport> reports;
  const std::vector<DevicePluginFile> plugins = find_device_plugins();
  std::vector<std::string> names = device_names();
  if (options.device_given && std::find(names.begin(), names.end(), options.job.device) == names.end())
    names.push_back(options.job.device);
  for (const std::string& name : names) reports.push_back(report_of(name, plugins));
  return reports;
}

Findings devices(const std::vector<DeviceReport>& reports) {
  Findings found;
  for (const DeviceReport& report : reports) found.push_back(device_finding(report));
  return found;
}

nlohmann::json devices_json(const std::vector<DeviceReport>& reports) {
  nlohmann::json rows = nlohmann::json::array();
  for (const DeviceReport& report : reports) rows.push_back(device_json(report));
  return rows;
}

}  // namespace prun::doctor
