#include "parameter_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.h"

namespace prun {
namespace {

constexpr size_t kMostNames = 8;  // in a line

struct List {
  std::string label, settings;
  double lr_factor = 1, weight_decay = 0;
  int64_t tensors = 0, elements = 0;
  std::vector<std::string> names, short_names;  // of each parameter; of parameters of like units together
};

// Returns the name with "block*" in place of "block3" if the class has several units.
std::string short_name(const Plan& plan, const Value& parameter, const std::map<std::string, int>& units) {
  const Unit& unit = plan.graph.units[parameter.unit];
  if (units.at(unit.unit_class) < 2) return parameter.name;
  return unit.unit_class + "*" + parameter.name.substr(unit.name.size());
}

std::vector<List> lists_of(const Plan& plan) {
  const Optimizer& optimizer = plan.optimizer;
  std::map<std::string, int> units;
  for (const Unit& unit : plan.graph.units) ++units[unit.unit_class];
  std::vector<List> lists;
  for (const ParameterGroup& group : optimizer.groups) {
    const std::string factor = group.lr == 1 ? "" : fmt::format("lr × {}, ", group.lr);
    lists.push_back({fmt::format("group {}, {}", lists.size() + 1, group.match),
                     fmt::format(" ({}decay {})", factor, group.weight_decay), group.lr, group.weight_decay});
  }
  lists.push_back({"no group", fmt::format(" (decay {})", optimizer.weight_decay), 1, optimizer.weight_decay});
  List frozen{"frozen", "", 0, 0};
  for (const Value& value : plan.graph.values) {
    if (value.kind != ValueKind::parameter) continue;
    List& list = value.frozen ? frozen : value.group > 0 ? lists[value.group - 1] : lists.back();
    ++list.tensors;
    list.elements += value.count();
    list.names.push_back(value.name);
    const std::string name = short_name(plan, value, units);
    if (std::ranges::find(list.short_names, name) == list.short_names.end()) list.short_names.push_back(name);
  }
  if (optimizer.groups.empty()) lists.clear();
  if (frozen.tensors > 0) lists.push_back(std::move(frozen));
  return lists;
}

}  // namespace

std::string parameter_lists(const Plan& plan) {
  std::string text;
  for (const List& list : lists_of(plan)) {
    text += fmt::format("{}{}: ", list.label, list.settings);
    if (list.tensors == 0) {
      text += list.label == "no group" ? "none\n" : "none, earlier groups take all that it matches\n";
      continue;
    }
    const size_t shown = std::min(list.short_names.size(), kMostNames);
    text += fmt::format("{} parameters in {}: {}", grouped(list.elements), counted(list.tensors, "tensor"),
                        join({list.short_names.begin(), list.short_names.begin() + static_cast<int64_t>(shown)}, ", "));
    text +=
        shown < list.short_names.size() ? fmt::format(", and {} more names\n", list.short_names.size() - shown) : "\n";
  }
  return text;
}

nlohmann::json parameter_lists_json(const Plan& plan) {
  nlohmann::json all = nlohmann::json::array();
  for (const List& list : lists_of(plan))
    all.push_back({{"group", list.label},
                   {"lr_factor", list.lr_factor},
                   {"weight_decay", list.weight_decay},
                   {"parameters", list.elements},
                   {"names", list.names}});
  return all;
}

}  // namespace prun
