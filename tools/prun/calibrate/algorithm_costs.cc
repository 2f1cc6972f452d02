#include "calibrate/algorithm_costs.h"

#include <fmt/format.h>

#include "ir/types.h"
#include "simulate/calibration.h"
#include "simulate/cluster.h"

namespace prun {
namespace {

// Returns the plugin of a calibrated transport; "" if the job does not use it. Calibrations distinguish AF_UNIX and TCP
// sockets, and a job uses one of them.
std::string plugin_of(const std::string& transport, const std::string& spec) {
  const bool tcp = spec.find("unix=0") != std::string::npos;
  if (transport == "socket-tcp") return tcp ? "socket" : "";
  return transport == "socket" && tcp ? "" : transport;
}

}  // namespace

std::string calibrated_algorithm_costs(const std::string& transport_options) {
  const std::string path = existing_calibration();
  if (path.empty()) return "";
  const simulate::Cluster cluster = simulate::read_cluster(path);
  std::string text;
  for (const auto& [transport, link] : cluster.transports) {
    const std::string plugin = plugin_of(transport, transport_options);
    if (plugin.empty()) continue;
    for (const auto& [kind, names] : link.algorithms)
      for (const auto& [name, rates] : names) {
        text += fmt::format("{} {} {} {:g}", plugin, traits(kind).name, name, rates.step_s);
        for (const auto& [bytes, bandwidth] : rates.bandwidth.at) text += fmt::format(" {:g}:{:g}", bytes, bandwidth);
        text += "\n";
      }
  }
  return text;
}

}  // namespace prun
