// The search space of prun tune: arguments of the plan, each with its values.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "job/job_spec.h"
#include "script/script.h"
#include "simulate/cluster.h"

namespace prun {

// Values to try, by argument, in the given order.
using ArgumentValues = std::vector<std::pair<std::string, std::vector<std::string>>>;

struct SearchedArgument {
  std::string name;
  std::vector<std::string> values;  // values to try; the plan's own comes first if it is one of them
  bool of_mesh = false;             // divisors of the ranks
};

// Index of each argument's value in its list.
using Combination = std::vector<int>;

struct SearchSpace {
  std::vector<SearchedArgument> arguments;
  int64_t combinations() const;  // at most kMostCombinations
  std::map<std::string, std::string> settings(const Combination& combination) const;
  std::string text(const Combination& combination) const;  // for example "tp=2 pp=4"
};
inline constexpr int64_t kMostCombinations = 1'000'000'000;

// Merges the plan's declarations (`tune` of its arguments) with `search`, which takes precedence; omits arguments set
// by --set. Throws usage_error.
SearchSpace search_space(const JobSpec& spec, const ArgumentValues& search, const std::vector<PlanArgument>& arguments,
                         const simulate::Cluster& cluster);

}  // namespace prun
