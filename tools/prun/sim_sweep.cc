#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/terminal.h"
#include "base/text.h"
#include "predict/predict.h"
#include "sim_options.h"

namespace prun {
namespace {

constexpr size_t kMostCandidates = 10000;

struct SweepRow {
  std::vector<std::string> values;  // values in the order of the sweep
  simulate::Simulation result;
  std::string left_out;  // reason of the omission, or ""
};

std::vector<SweepRow> all_combinations(const SimSettings& settings) {
  std::vector<SweepRow> all(1);
  for (const auto& [name, values] : settings.sweep) {
    std::vector<SweepRow> more;
    for (const SweepRow& each : all)
      for (const std::string& value : values) {
        more.push_back(each);
        more.back().values.push_back(value);
      }
    all = std::move(more);
    if (all.size() > kMostCandidates)
      throw usage_error(fmt::format("--sweep asks for more than {} combinations", kMostCandidates));
  }
  return all;
}

std::string settings_text(const SimSettings& settings, const SweepRow& of) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < of.values.size(); ++i)
    parts.push_back(fmt::format("{}={}", settings.sweep[i].first, of.values[i]));
  return join(parts, " ");
}

nlohmann::ordered_json settings_json(const SimSettings& settings, const SweepRow& of) {
  nlohmann::ordered_json all;
  for (size_t i = 0; i < of.values.size(); ++i) all[settings.sweep[i].first] = of.values[i];
  return all;
}

void print_json(const SimSettings& settings, const std::vector<SweepRow>& all) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array(), left_out = nlohmann::ordered_json::array();
  for (const SweepRow& each : all) {
    if (!each.left_out.empty()) {
      left_out.push_back({{"settings", settings_json(settings, each)}, {"why", each.left_out}});
      continue;
    }
    rows.push_back({{"settings", settings_json(settings, each)},
                    {"step_s", each.result.step_s},
                    {"tflops_per_device", each.result.tflops_per_device()},
                    {"mfu", each.result.mfu()},
                    {"peak_bytes", most_memory(each.result).peak_bytes}});
  }
  const nlohmann::ordered_json made = {{"sweep", rows}, {"left_out", left_out}};
  fmt::print("{}\n", made.dump());
}

void print_table(const SimSettings& settings, const std::vector<SweepRow>& all) {
  size_t wide = 8;
  for (const SweepRow& each : all) wide = std::max(wide, settings_text(settings, each).size());
  fmt::print("{:<{}}  {:>10} {:>10} {:>7} {:>10}\n", "", wide, "step", "TFLOP/s", "MFU", "peak");
  for (const SweepRow& each : all)
    if (each.left_out.empty())
      fmt::print("{:<{}}  {:>10} {:>10.1f} {:>5.1f} % {:>10}\n", settings_text(settings, each), wide,
                 human_seconds(each.result.step_s), each.result.tflops_per_device(), 100 * each.result.mfu(),
                 human_bytes(most_memory(each.result).peak_bytes));
  for (const SweepRow& each : all)
    if (!each.left_out.empty()) fmt::print("left out: {}: {}\n", settings_text(settings, each), each.left_out);
}

}  // namespace

void sweep(const JobSpec& job, const SimSettings& settings, bool json, const simulate::Cluster& cluster) {
  std::vector<SweepRow> all = all_combinations(settings);
  {
    Bar bar("simulate", "combinations");
    for (size_t i = 0; i < all.size(); ++i) {
      bar.advance(static_cast<int64_t>(i), std::ssize(all));
      JobSpec one = job;
      for (size_t s = 0; s < all[i].values.size(); ++s) one.settings[settings.sweep[s].first] = all[i].values[s];
      try {
        all[i].result = simulate_plan(one, cluster, prediction_options(settings, Wanted::largest_peak)).result;
        all[i].left_out = simulate::too_large(all[i].result);
      } catch (const Error& error) {
        if (error.code() != Exit::plan) throw;
        all[i].left_out = error.what();
      }
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const SweepRow& a, const SweepRow& b) {
    return a.left_out.empty() && (!b.left_out.empty() || a.result.step_s < b.result.step_s);
  });
  json ? print_json(settings, all) : print_table(settings, all);
}

}  // namespace prun
