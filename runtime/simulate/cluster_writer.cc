// Writes four digits of each figure, because no measurement is more precise.
#include <fmt/format.h>

#include <cmath>

#include "base/text.h"
#include "simulate/cluster.h"

namespace prun::simulate {
namespace {

std::string seconds_text(double seconds) { return fmt::format("{:.4g} us", seconds * 1e6); }
std::string bandwidth_text(double bandwidth) {
  return bandwidth >= 1e9 ? fmt::format("{:.4g} GB/s", bandwidth * 1e-9) : fmt::format("{:.4g} MB/s", bandwidth * 1e-6);
}
std::string flops_text(double rate) {
  return rate >= 1e9 ? fmt::format("{:.4g} GFLOP/s", rate * 1e-9) : fmt::format("{:.4g} MFLOP/s", rate * 1e-6);
}
std::string size_text(double bytes) {
  return std::fmod(bytes, 1024) == 0 ? fmt::format("{:.0f} KiB", bytes / 1024) : fmt::format("{:.0f} B", bytes);
}

std::string curve_text(const Curve& curve, std::string (*text)(double)) {
  if (curve.at.size() == 1) return text(curve.at[0].second);
  std::vector<std::string> points;
  for (const auto& [bytes, speed] : curve.at) points.push_back(fmt::format("{}: {}", size_text(bytes), text(speed)));
  return "{ " + join(points, ", ") + " }";
}

std::string rates_text(const OpRates& rates) {
  std::vector<std::string> parts = {"launch: " + seconds_text(rates.launch_s)};
  if (!rates.rate.at.empty()) parts.push_back("rate: " + curve_text(rates.rate, flops_text));
  if (!rates.bandwidth.at.empty()) parts.push_back("bandwidth: " + curve_text(rates.bandwidth, bandwidth_text));
  return "{ " + join(parts, ", ") + " }";
}

std::string rates_text(const CollectiveRates& rates) {
  return fmt::format("{{ step: {}, bandwidth: {} }}", seconds_text(rates.step_s),
                     curve_text(rates.bandwidth, bandwidth_text));
}

std::string link_text(const LinkModel& link, const std::string& indent) {
  std::string text = fmt::format("{0}name: {1}\n{0}bandwidth: {2}\n{0}step: {3}\n{0}tree_step: {4}\n{0}message: {5}\n",
                                 indent, link.name, bandwidth_text(link.bandwidth), seconds_text(link.step_s),
                                 seconds_text(link.tree_step_s), seconds_text(link.message_s));
  text += fmt::format("{}message_efficiency: {:.3g}\n", indent, link.message_efficiency);
  if (link.channels > 0) text += fmt::format("{}channels: {}\n", indent, link.channels);
  if (!link.collectives.empty()) text += indent + "collectives:\n";
  for (const auto& [kind, rates] : link.collectives)
    text += fmt::format("{}  {}: {}\n", indent, traits(kind).name, rates_text(rates));
  if (!link.algorithms.empty()) text += indent + "algorithms:\n";
  for (const auto& [kind, names] : link.algorithms) {
    text += fmt::format("{}  {}:\n", indent, traits(kind).name);
    for (const auto& [name, rates] : names) text += fmt::format("{}    {}: {}\n", indent, name, rates_text(rates));
  }
  return text;
}

std::string device_text(const DeviceModel& device) {
  std::vector<std::string> peaks;
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16})
    if (const double peak = device.peak[static_cast<size_t>(dtype)]; peak > 0)
      peaks.push_back(fmt::format("{}: {}", dtype_name(dtype), flops_text(peak)));
  std::string text = fmt::format("device:\n  name: \"{}\"\n  peak: {{ {} }}\n", device.name, join(peaks, ", "));
  text += fmt::format("  sustained: {:.3g}\n  memory: {:.0f} MiB\n", device.sustained, device.memory_bytes / 1048576);
  text += fmt::format("  memory_bandwidth: {}\n  memory_efficiency: {:.3g}\n", bandwidth_text(device.memory_bandwidth),
                      device.memory_efficiency);
  text += fmt::format("  launch: {}\n  wake: {}\n  shared_cores: {}\n  optimizer_bytes: {:.3g}\n",
                      seconds_text(device.launch_s), seconds_text(device.wake_s), device.shared_cores,
                      device.optimizer_bytes);
  if (!device.ops.empty()) text += "  ops:\n";
  std::string last;
  for (const auto& [kind, rates] : device.ops) {
    if (kind.first != last) text += fmt::format("    {}:\n", kind.first);
    last = kind.first;
    text += fmt::format("      {}: {}\n", dtype_name(kind.second), rates_text(rates));
  }
  return text;
}

}  // namespace

std::string cluster_text(const Cluster& cluster, const std::string& comment) {
  std::string text;
  for (const std::string& line : split(comment, '\n')) text += "# " + line + "\n";
  text += fmt::format("name: \"{}\"\n", cluster.name) + device_text(cluster.device);
  text += fmt::format("node: {{ devices: {} }}\nnodes: 1\n", cluster.node.devices);
  text += "bus:\n" + link_text(cluster.bus, "  ");
  if (!cluster.transports.empty()) text += "transports:\n";
  for (const auto& [name, link] : cluster.transports) text += fmt::format("  {}:\n", name) + link_text(link, "    ");
  return text;
}

}  // namespace prun::simulate
