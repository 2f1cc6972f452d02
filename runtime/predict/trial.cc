#include "predict/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace prun {

using simulate::Bound;
using simulate::ClassResult;

void take_results(Trial& trial, const SimulatedPlan& made, const simulate::Cluster& cluster) {
  const simulate::Simulation& result = made.result;
  const ClassResult& most = simulate::most_memory(result);
  trial.misfit = simulate::too_large(result);
  trial.step_s = result.step_s;
  trial.tflops_per_device = result.tflops_per_device();
  trial.mfu = result.mfu();
  trial.peak_bytes = static_cast<double>(most.peak_bytes);
  trial.memory_bytes = most.memory_bytes;
  trial.mesh = made.mesh;
  // The ranks with the least waiting are those that the others wait for.
  const auto busiest = std::min_element(result.classes.begin(), result.classes.end(),
                                        [](const auto& a, const auto& b) { return a.usage.idle < b.usage.idle; });
  trial.limit = simulate::limit_text(result, cluster, *busiest);
  const auto mean = [&](const auto& of) {
    double sum = 0;
    for (const ClassResult& each : result.classes) sum += of(each.usage) * each.ranks / result.ranks;
    return sum;
  };
  const auto add = [&](const std::string& name, const auto& of) {
    if (const double seconds = mean(of); seconds > 0) trial.parts.emplace_back(name, seconds);
  };
  const auto bound = [](Bound which) {
    return [which](const simulate::Usage& usage) { return usage.computing[static_cast<size_t>(which)]; };
  };
  add("compute", bound(Bound::compute));
  add("memory bandwidth", bound(Bound::memory));
  add("launch of ops", bound(Bound::launch));
  for (int level = 0; level <= std::ssize(cluster.network); ++level)
    add(link_at(cluster, level).name, [level](const simulate::Usage& usage) { return usage.exposed[level]; });
  add("copies from and to the host", [](const simulate::Usage& usage) { return usage.copying; });
  add("waiting", [](const simulate::Usage& usage) { return usage.idle; });
}

std::string to_text(const Trial& trial) {
  const nlohmann::json all = {
      {"wrong", trial.wrong},     {"misfit", trial.misfit},   {"proof", trial.proof},
      {"refuted", trial.refuted}, {"step", trial.step_s},     {"tflops", trial.tflops_per_device},
      {"mfu", trial.mfu},         {"peak", trial.peak_bytes}, {"memory", trial.memory_bytes},
      {"mesh", trial.mesh},       {"limit", trial.limit},     {"parts", trial.parts}};
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void from_text(Trial& trial, const std::string& text) {
  const nlohmann::json all = nlohmann::json::parse(text);
  all.at("wrong").get_to(trial.wrong);
  all.at("misfit").get_to(trial.misfit);
  all.at("proof").get_to(trial.proof);
  all.at("refuted").get_to(trial.refuted);
  all.at("step").get_to(trial.step_s);
  all.at("tflops").get_to(trial.tflops_per_device);
  all.at("mfu").get_to(trial.mfu);
  all.at("peak").get_to(trial.peak_bytes);
  all.at("memory").get_to(trial.memory_bytes);
  all.at("mesh").get_to(trial.mesh);
  all.at("limit").get_to(trial.limit);
  all.at("parts").get_to(trial.parts);
}

}  // namespace prun
