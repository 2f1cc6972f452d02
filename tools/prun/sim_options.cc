#include "sim_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "options.h"

namespace prun {
namespace {

// NAME=V,V,.. of --sweep and --search, which are `option`.
void read_sweep(ArgumentValues& all, const std::string& option, const std::string& text) {
  const size_t equals = text.find('=');
  const std::vector<std::string> values =
      equals == std::string::npos ? std::vector<std::string>() : split(text.substr(equals + 1), ',');
  if (equals == 0 || values.empty() ||
      std::any_of(values.begin(), values.end(), [](const auto& v) { return v.empty(); }))
    throw usage_error(fmt::format("{} wants NAME=VALUE,VALUE,.., not '{}'", option, text));
  const std::string name = text.substr(0, equals);
  for (const auto& [known, unused] : all)
    if (known == name) throw usage_error(fmt::format("{} has '{}' twice", option, name));
  for (auto value = values.begin(); value != values.end(); ++value)
    if (std::find(values.begin(), value, *value) != value)
      throw usage_error(fmt::format("{} {} has the value '{}' twice", option, name, *value));
  all.emplace_back(name, values);
}

}  // namespace

void define_simulation_options(Definer& define, Commands command, SimSettings& settings) {
  define.text(
      kSim | kTune | kDraw | kDiff, "--cluster", "FILE", settings.cluster,
      command == kDraw
          ? "predict the plan's step on it, as prun sim does (default: unit costs)"
          : "what to simulate on: devices, nodes and networks, as YAML (default: this machine's, if calibrated)");
  define.parsed(
      kSim, "--sweep", "NAME=V,V,..",
      [&settings](const std::string& text) { read_sweep(settings.sweep, "--sweep", text); },
      "simulate with each of these values of an argument; several: all combinations, the fastest first", true);
  define.parsed(
      kTune, "--search", "NAME=V,V,..",
      [&settings](const std::string& text) { read_sweep(settings.search, "--search", text); },
      "try these values of an argument, or divisors (of the ranks), or node (of its devices); default: what the plan "
      "says",
      true);
  define.whole(kTune, "--candidates", "N", settings.candidates, 1,
               "estimate so many combinations (default 1000); where there are more, those near the best");
  define.whole(kSim, "--steps", "K", settings.steps, 1,
               "steps drawn on a cluster whose devices have jitter (default 100)");
  define.whole(kSim, "--seed", "N", settings.seed, 0, "of these steps (default 0)");
  define.flag(kSim, "--whole", settings.whole, "simulate every microbatch, layer and stage (slower)");
  define.flag(kSim, "--extrapolate", settings.extrapolate, "simulate few of them even where the step is short");
  define.flag(kSim, "--every-rank", settings.every_rank,
              "no rank stands for others that are like it (slower, the same figures)");
}

void check_simulation_options(const Options& options) {
  const SimSettings& settings = options.sim;
  if (settings.whole && settings.extrapolate) throw usage_error("--whole and --extrapolate: it is one or the other");
  if (settings.sweep.empty()) return;
  if (!options.job.watch.trace.empty()) throw usage_error("--trace is of one plan: not with --sweep");
  if (settings.steps > 0) throw usage_error("--steps is of one plan: not with --sweep");
  for (const auto& [name, values] : settings.sweep)
    if (options.job.settings.contains(name))
      throw usage_error(fmt::format("--sweep {} and --set {}: it is one or the other", name, name));
}

PredictOptions prediction_options(const SimSettings& settings, Wanted wanted) {
  return {wanted, settings.whole, settings.extrapolate, settings.every_rank};
}

}  // namespace prun
