// Greedy search: changes one argument at a time to the value whose estimate is the fastest that fits, or, while none
// fits, the smallest. The suggested setting has been simulated.
#include "predict/what_fits.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "job/build.h"
#include "predict/estimate.h"
#include "predict/parallel.h"
#include "predict/predict.h"
#include "predict/search_space.h"

namespace prun {
namespace {

constexpr int kMostChanges = 3;  // upper bound of changed arguments

class Fitting {
 public:
  Fitting(const JobSpec& spec, const simulate::Cluster& cluster) : spec_(spec), cluster_(cluster) {
    const std::vector<PlanArgument> arguments = describe_plan(spec).arguments;
    for (const PlanArgument& each : arguments) {
      if (each.name == "layers") spec_.settings.try_emplace(each.name, each.initial);  // may be reduced
      current_[each.name] = spec.settings.contains(each.name) ? spec.settings.at(each.name) : each.initial;
    }
    JobSpec open = spec_;
    for (const PlanArgument& each : arguments)
      if (!each.tune.empty()) open.settings.erase(each.name);
    space_ = search_space(open, {}, arguments, cluster);
  }

  using Change = std::pair<std::string, std::string>;
  struct Nearest {
    std::vector<Change> changes;
    double peak_bytes = 0;  // estimate
    bool fits = false;
  };

  Nearest run() {
    Nearest nearest;
    for (int round = 0; round < kMostChanges && !nearest.fits; ++round) {
      const auto next = best_change(nearest.changes);
      if (!next || (round > 0 && next->second.peak_bytes >= nearest.peak_bytes)) break;
      nearest.changes.push_back(next->first);
      nearest.peak_bytes = next->second.peak_bytes;
      nearest.fits = fits(next->second);
      spec_.settings[next->first.first] = next->first.second;
    }
    return nearest;
  }

  double simulated_step() const {  // 0 = it does not fit after all
    const simulate::Simulation result = simulate_plan(spec_, cluster_, {.wanted = Wanted::largest_peak}).result;
    return simulate::too_large(result).empty() ? result.step_s : 0;
  }

 private:
  static bool fits(const Estimate& estimate) { return estimate.peak_bytes <= estimate.memory_bytes; }

  static bool better(const Estimate& a, const Estimate& b) {
    if (fits(a) != fits(b)) return fits(a);
    return fits(a) ? a.step_s < b.step_s : a.peak_bytes < b.peak_bytes;
  }

  std::vector<Change> possible_changes(const std::vector<Change>& changed) const {
    std::vector<Change> all;
    for (const SearchedArgument& argument : space_.arguments) {
      const auto has_it = [&](const Change& each) { return each.first == argument.name; };
      if (std::any_of(changed.begin(), changed.end(), has_it)) continue;
      for (const std::string& value : argument.values)
        if (value != current_.at(argument.name)) all.emplace_back(argument.name, value);
    }
    return all;
  }

  std::optional<std::pair<Change, Estimate>> best_change(const std::vector<Change>& changed) const {
    const std::vector<Change> changes = possible_changes(changed);
    const auto work = [&](int item) { return estimate_text(changes[static_cast<size_t>(item)]); };
    const std::vector<std::string> texts =
        in_processes(static_cast<int>(changes.size()), spec_.lua_dir, work, [](int) {});
    std::optional<std::pair<Change, Estimate>> best;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (texts[i].empty()) continue;
      const nlohmann::json of = nlohmann::json::parse(texts[i]);
      const Estimate estimate{of[0], of[1], of[2]};
      if (!best || better(estimate, best->second)) best = {changes[i], estimate};
    }
    return best;
  }

  // Returns "" if there is no such plan.
  std::string estimate_text(const Change& change) const {
    JobSpec one = spec_;
    one.settings[change.first] = change.second;
    try {
      const Estimate estimate = estimate_plan(one, cluster_);
      return nlohmann::json({estimate.step_s, estimate.peak_bytes, estimate.memory_bytes}).dump();
    } catch (const Error& error) {
      if (error.code() != Exit::plan && error.code() != Exit::script_limit) throw;
      return "";
    }
  }

  JobSpec spec_;
  const simulate::Cluster& cluster_;
  std::map<std::string, std::string> current_;
  SearchSpace space_;
};

}  // namespace

std::string what_would_fit(const JobSpec& spec, const simulate::Cluster& cluster) {
  std::string otherwise = "more ranks in tp or pp, a stage of ZeRO or recomputation need less";
  try {
    Fitting fitting(spec, cluster);
    const Fitting::Nearest nearest = fitting.run();
    if (nearest.changes.empty()) return otherwise;
    std::vector<std::string> words;
    words.reserve(nearest.changes.size());
    for (const auto& [name, value] : nearest.changes) words.push_back(fmt::format("--set {}={}", name, value));
    if (!nearest.fits)
      return fmt::format("{} comes nearest, with about {}; more ranks (--nproc) need less each", join(words, " "),
                         human_bytes(static_cast<int64_t>(nearest.peak_bytes)));
    const double step_s = fitting.simulated_step();
    if (step_s == 0) return otherwise;
    return fmt::format("{} would fit, at {} a step; prun tune compares all", join(words, " "), human_seconds(step_s));
  } catch (const Error&) {  // no argument of the plan declares values to try
    return otherwise;
  }
}

}  // namespace prun
