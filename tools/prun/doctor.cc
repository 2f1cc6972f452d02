// prun doctor: reports memory, limits, transports and devices of this machine, with advice for problems. With --device
// the exit code tells whether ranks could compute there.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "comm/comm.h"
#include "commands.h"
#include "device/device.h"
#include "device/plugin_device.h"
#include "device_check.h"
#include "machine.h"

namespace prun {
namespace {

struct Findings {
  std::vector<MachineFact> machine;
  std::vector<PluginInfo> transports;
  std::vector<DeviceReport> devices;
};

// Plugins are probed; a device that was not built reports what it needs.
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

Findings examine(const Options& options) {
  Findings findings;
  findings.machine = machine_facts();
  findings.transports = list_plugins(options.world.plugin_dirs);
  const std::vector<DevicePluginFile> plugins = find_device_plugins();
  std::vector<std::string> names = device_names();
  if (options.device_given && std::find(names.begin(), names.end(), options.device) == names.end())
    names.push_back(options.device);
  for (const std::string& name : names) findings.devices.push_back(report_of(name, plugins));
  return findings;
}

void print_row(const std::string& left, const std::string& right) { fmt::print("  {:<14} {}\n", left, right); }

// "ECC on; NVLink to GPU 1; a context takes 400 MiB of it".
std::string facts_of(const FoundDevice& device) {
  std::string facts = device.health.facts;
  if (device.health.context_bytes > 0)
    facts += fmt::format("{}a context takes {} of it", facts.empty() ? "" : "; ",
                         human_bytes(static_cast<int64_t>(device.health.context_bytes)));
  return facts;
}

void print_device(const DeviceReport& report) {
  const bool plugin = !report.version.empty();
  print_row(report.name, !report.problem.empty() ? "cannot be used: " + report.problem
                         : plugin                ? report.summary
                                                 : "always there");
  if (!plugin) return;
  const std::string driver = report.probe.driver;
  print_row("", fmt::format("driver {}; {}; {}", driver.empty() ? "none" : driver, report.probe.runtime,
                            report.probe.libraries));
  for (const FoundDevice& device : report.devices) {
    const std::string state =
        !device.problem.empty()
            ? "cannot be used: " + device.problem
            : fmt::format("{}, {}, {} of {} free, {}", device.info.name, device.info.architecture,
                          human_bytes(static_cast<int64_t>(device.info.free_bytes)),
                          human_bytes(static_cast<int64_t>(device.info.total_bytes)), device.info.id);
    print_row("", fmt::format("{}:{}  {}", report.name, device.index, state));
    if (const std::string facts = facts_of(device); !facts.empty()) print_row("", "        " + facts);
    for (const std::string& advice : split(device.health.advice, '\n')) print_row("", "        ! " + advice);
  }
}

void print_all(const Findings& findings) {
  fmt::print("prun {} ({}, GCC {})\n", PRUN_VERSION, PRUN_BUILD_TYPE, __VERSION__);
  fmt::print("machine\n");
  for (const MachineFact& fact : findings.machine)
    print_row(fact.name, fact.advice.empty() ? fact.value
                                             : fmt::format("{}, which may be too little: {}", fact.value, fact.advice));
  fmt::print("transports\n");
  for (const PluginInfo& plugin : findings.transports)
    print_row(plugin.name, plugin.error.empty() ? plugin.summary : "cannot be loaded: " + plugin.error);
  if (findings.transports.empty()) print_row("none", "no plugin is beside this program, nor in PRUN_PLUGIN_PATH");
  fmt::print("devices\n");
  for (const DeviceReport& report : findings.devices) print_device(report);
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

void print_json(const Findings& findings) {
  nlohmann::json machine, transports = nlohmann::json::array(), devices = nlohmann::json::array();
  for (const MachineFact& fact : findings.machine)
    machine[fact.name] = {{"number", fact.number}, {"text", fact.value}, {"advice", fact.advice}};
  for (const PluginInfo& plugin : findings.transports)
    transports.push_back(
        {{"name", plugin.name}, {"version", plugin.version}, {"summary", plugin.summary}, {"problem", plugin.error}});
  for (const DeviceReport& report : findings.devices) devices.push_back(device_json(report));
  const nlohmann::json all = {{"prun", PRUN_VERSION},
                              {"build", PRUN_BUILD_TYPE},
                              {"machine", machine},
                              {"transports", transports},
                              {"devices", devices}};
  fmt::print("{}\n", all.dump());
}

}  // namespace

int doctor_command(Options& options) {
  const Findings findings = examine(options);
  options.json ? print_json(findings) : print_all(findings);
  if (!options.device_given) return 0;
  std::fflush(stdout);  // before the error, which goes elsewhere
  for (const DeviceReport& report : findings.devices)
    if (report.name == options.device) require_devices(options, report);
  return 0;
}

}  // namespace prun
