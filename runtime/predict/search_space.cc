#include "predict/search_space.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace {

std::vector<std::string> divisors_of(int number) {
  std::vector<std::string> all;
  for (int each = 1; each <= number; ++each)
    if (number % each == 0) all.push_back(std::to_string(each));
  return all;
}

// Parses "divisors", "node", or values between commas.
SearchedArgument searched(const std::string& name, const std::vector<std::string>& words, int ranks, int node) {
  SearchedArgument argument{name, words, false};
  if (words.size() == 1 && (words[0] == "divisors" || words[0] == "node")) {
    argument.values = divisors_of(words[0] == "node" ? std::min(ranks, node) : ranks);
    argument.of_mesh = true;
  }
  return argument;
}

}  // namespace

int64_t SearchSpace::combinations() const {
  int64_t product = 1;
  for (const SearchedArgument& each : arguments)
    product = std::min<int64_t>(kMostCombinations, product * std::ssize(each.values));
  return product;
}

std::map<std::string, std::string> SearchSpace::settings(const Combination& combination) const {
  std::map<std::string, std::string> all;
  for (size_t i = 0; i < arguments.size(); ++i) all[arguments[i].name] = arguments[i].values[combination[i]];
  return all;
}

std::string SearchSpace::text(const Combination& combination) const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < arguments.size(); ++i)
    parts.push_back(fmt::format("{}={}", arguments[i].name, arguments[i].values[combination[i]]));
  return join(parts, " ");
}

SearchSpace search_space(const JobSpec& spec, const ArgumentValues& search, const std::vector<PlanArgument>& arguments,
                         const simulate::Cluster& cluster) {
  const int ranks = spec.ranks(), node = cluster.node.devices;
  std::vector<std::string> names;
  names.reserve(arguments.size());
  for (const PlanArgument& each : arguments) names.push_back(each.name);
  for (const auto& [name, words] : search) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw usage_error(
          fmt::format("--search {}: the plan has no argument '{}'{}", name, name, did_you_mean(name, names)));
    if (spec.settings.contains(name))
      throw usage_error(fmt::format("--search {} and --set {} exclude each other; give one", name, name));
  }
  SearchSpace space;
  for (const PlanArgument& each : arguments) {
    if (spec.settings.contains(each.name)) continue;
    const auto& given = search;
    const auto found =
        std::find_if(given.begin(), given.end(), [&](const auto& one) { return one.first == each.name; });
    const std::vector<std::string> words = found != given.end() ? found->second : split(each.tune, ',');
    if (words.empty()) continue;
    SearchedArgument argument = searched(each.name, words, ranks, node);
    const auto own = std::find(argument.values.begin(), argument.values.end(), each.initial);
    if (own != argument.values.end()) std::rotate(argument.values.begin(), own, own + 1);
    space.arguments.push_back(std::move(argument));
  }
  if (space.arguments.empty())
    throw usage_error(fmt::format("{} says of no argument what to try (tune), and there is no --search{}", spec.plan,
                                  names.empty() ? "" : fmt::format(", such as --search {}=1,2", names.front())));
  return space;
}

}  // namespace prun
