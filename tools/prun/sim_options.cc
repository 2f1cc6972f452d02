#include "sim_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "simulate/calibration.h"

namespace prun {
namespace {

// Parses NAME=V,V,.. of --sweep or --search, given by `option`.
void read_sweep(ArgumentValues& all, const std::string& option, const std::string& text) {
  const size_t equals = text.find('=');
  const std::vector<std::string> values =
      equals == std::string::npos ? std::vector<std::string>() : split(text.substr(equals + 1), ',');
  if (equals == 0 || values.empty() ||
      std::any_of(values.begin(), values.end(), [](const auto& v) { return v.empty(); }))
    throw usage_error(fmt::format("{} must be NAME=VALUE,VALUE,.., not '{}'", option, text));
  const std::string name = text.substr(0, equals);
  for (const auto& [known, unused] : all)
    if (known == name) throw usage_error(fmt::format("{} has '{}' twice", option, name));
  for (auto value = values.begin(); value != values.end(); ++value)
    if (std::find(values.begin(), value, *value) != value)
      throw usage_error(fmt::format("{} {} has the value '{}' twice", option, name, *value));
  all.emplace_back(name, values);
}

// Returns the devices of the cluster's nodes, at most `enough`.
int64_t device_count(const simulate::Cluster& cluster, int enough) {
  if (cluster.nodes.empty()) return enough;
  int64_t devices = 0;
  for (const simulate::NodeModel& node : cluster.nodes) devices += node.devices;
  return std::min<int64_t>(devices, enough);
}

}  // namespace

void declare_cluster(OptionTable& table, SimSettings& settings) {
  table.text("--cluster", "FILE", settings.cluster,
             "what to simulate on: devices, nodes and networks, as YAML (default: this machine's, if calibrated)");
}

void declare_simulation(OptionTable& table, SimSettings& settings) {
  declare_cluster(table, settings);
  table.parsed(
      "--sweep", "NAME=V,V,..", [&settings](const std::string& text) { read_sweep(settings.sweep, "--sweep", text); },
      "simulate with each of these values of an argument; several: all combinations, the fastest first", true);
  table.whole("--steps", "K", settings.steps, 1, "steps drawn on a cluster whose devices have jitter (default 100)");
  table.whole("--seed", "N", settings.seed, 0, "of these steps (default 0)");
  table.flag("--whole", settings.whole, "simulate every microbatch, layer and stage (slower)");
  table.flag("--extrapolate", settings.extrapolate, "simulate few of them even where the step is short");
  table.flag("--every-rank", settings.every_rank,
             "no rank stands for others that are like it (slower, the same figures)");
}

void declare_search(OptionTable& table, SimSettings& settings) {
  declare_cluster(table, settings);
  table.parsed(
      "--search", "NAME=V,V,..",
      [&settings](const std::string& text) { read_sweep(settings.search, "--search", text); },
      "try these values of an argument, or divisors (of the ranks), or node (of its devices); default: what the plan "
      "says",
      true);
  table.whole("--candidates", "N", settings.candidates, 1,
              "estimate so many combinations (default 1000); where there are more, those near the best");
}

void settle_cluster(SimSettings& settings, bool required, int ranks) {
  if (!settings.cluster.empty()) return;
  std::string why;
  if (const std::string path = existing_calibration(); !path.empty()) {
    const int64_t devices = device_count(simulate::read_cluster(path), ranks);
    if (devices >= ranks) {
      settings.cluster = path;
      fmt::print(stderr, "prun: no --cluster: {} is used, by prun calibrate\n", path);
      return;
    }
    why = fmt::format("{}, by prun calibrate, has {}, too few for {}", path, counted(devices, "device"),
                      counted(ranks, "rank"));
  }
  if (required)
    throw usage_error(fmt::format("on which cluster? For example: --cluster plans/clusters/dgx-a100.yaml{}",
                                  why.empty() ? ", or `prun calibrate` for this machine" : " (" + why + ")"));
  if (!why.empty()) fmt::print(stderr, "prun: without --cluster: {}\n", why);
}

void check_simulation_options(const SimSettings& settings, const JobSpec& job) {
  if (settings.whole && settings.extrapolate)
    throw usage_error("--whole and --extrapolate exclude each other; give one");
  if (settings.sweep.empty()) return;
  if (!job.watch.trace.empty()) throw usage_error("--trace covers one plan and cannot be combined with --sweep");
  if (settings.steps > 0) throw usage_error("--steps covers one plan and cannot be combined with --sweep");
  for (const auto& [name, values] : settings.sweep)
    if (job.settings.contains(name))
      throw usage_error(fmt::format("--sweep {} and --set {} exclude each other; give one", name, name));
}

PredictOptions prediction_options(const SimSettings& settings, Wanted wanted) {
  return {wanted, settings.whole, settings.extrapolate, settings.every_rank};
}

}  // namespace prun
