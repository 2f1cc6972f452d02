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
  std::vector<std::string> names;
  std::vector<std::string> short_names;  // "block*.up.bias" if the list has the parameter of every block
};

// Returns the parameter's name with "block*" in place of "block3".
std::string name_in_class(const Plan& plan, const Value& parameter) {
  const Unit& unit = plan.graph.units[parameter.unit];
  return unit.unit_class + "*" + parameter.name.substr(unit.name.size());
}

void shorten(const Plan& plan, const std::vector<const Value*>& parameters, const std::map<std::string, int>& units,
             List& list) {
  std::map<std::string, int> members;
  for (const Value* value : parameters) ++members[name_in_class(plan, *value)];
  for (const Value* value : parameters) {
    const std::string name = name_in_class(plan, *value);
    const int all = units.at(plan.graph.units[value->unit].unit_class);
    if (all < 2 || members.at(name) < all)
      list.short_names.push_back(value->name);
    else if (std::ranges::find(list.short_names, name) == list.short_names.end())
      list.short_names.push_back(name);
  }
}

// Returns the number of units of each class.
std::map<std::string, int> units_by_class(const Plan& plan) {
  std::map<std::string, int> units;
  for (const Unit& unit : plan.graph.units) ++units[unit.unit_class];
  return units;
}

std::string without(std::string name, std::string_view end) {
  name.resize(name.size() - end.size());
  return name;
}

// Returns the layers with adapters.
List adapters_of(const Plan& plan) {
  List list{"lora", fmt::format(" (rank {}, alpha {})", plan.adapters.rank, plan.adapters.alpha)};
  std::vector<const Value*> firsts;
  for (const Value& value : plan.graph.values) {
    if (!value.name.ends_with(kAdapterA) && !value.name.ends_with(kAdapterB)) continue;
    list.elements += value.count();
    if (!value.name.ends_with(kAdapterA)) continue;
    ++list.tensors;
    list.names.push_back(without(value.name, kAdapterA));
    firsts.push_back(&value);
  }
  shorten(plan, firsts, units_by_class(plan), list);
  for (std::string& name : list.short_names) name = without(name, kAdapterA);
  return list;
}

// Returns the first names of a list and the number of the omitted ones.
std::string shown_names(const List& list) {
  const size_t shown = std::min(list.short_names.size(), kMostNames);
  std::string text = join({list.short_names.begin(), list.short_names.begin() + static_cast<int64_t>(shown)}, ", ");
  if (shown < list.short_names.size()) text += fmt::format(", and {} more names", list.short_names.size() - shown);
  return text + "\n";
}

std::vector<List> lists_of(const Plan& plan) {
  const Optimizer& optimizer = plan.optimizer;
  const std::map<std::string, int> units = units_by_class(plan);
  std::vector<List> lists;
  // Returns the name of an optimizer if there are several.
  const auto named = [&](int number) {
    if (optimizer.others.empty()) return std::string();
    return (number > 0 ? optimizer.others[number - 1].name : optimizer.name) + ", ";
  };
  for (const ParameterGroup& group : optimizer.groups) {
    const std::string factor = group.lr == 1 ? "" : fmt::format("lr × {:.6g}, ", group.lr);
    lists.push_back({fmt::format("group {}, {}", lists.size() + 1, group.match),
                     fmt::format(" ({}{}decay {})", named(group.optimizer), factor, group.weight_decay), group.lr,
                     group.weight_decay});
  }
  lists.push_back(
      {"no group", fmt::format(" ({}decay {})", named(0), optimizer.weight_decay), 1, optimizer.weight_decay});
  lists.push_back({"frozen", "", 0, 0});
  std::vector<std::vector<const Value*>> parameters(lists.size());
  for (const Value& value : plan.graph.values) {
    if (value.kind != ValueKind::parameter || value.buffer) continue;
    const size_t at = value.frozen ? lists.size() - 1 : value.group > 0 ? value.group - 1 : lists.size() - 2;
    ++lists[at].tensors;
    lists[at].elements += value.count();
    lists[at].names.push_back(value.name);
    parameters[at].push_back(&value);
  }
  for (size_t i = 0; i < lists.size(); ++i) shorten(plan, parameters[i], units, lists[i]);
  if (lists.back().tensors == 0) lists.pop_back();
  if (optimizer.groups.empty()) lists.erase(lists.begin());
  return lists;
}

}  // namespace

std::string parameter_lists(const Plan& plan) {
  std::string text;
  if (plan.adapters.any()) {
    const List list = adapters_of(plan);
    text = fmt::format("lora{}: {} parameters in {}: {}", list.settings, grouped(list.elements),
                       counted(list.tensors, "layer"), shown_names(list));
  }
  for (const List& list : lists_of(plan)) {
    text += fmt::format("{}{}: ", list.label, list.settings);
    if (list.tensors == 0) {
      text += list.label == "no group" ? "none\n" : "none: earlier groups or `frozen` take all that it matches\n";
      continue;
    }
    text += fmt::format("{} parameters in {}: {}", grouped(list.elements), counted(list.tensors, "tensor"),
                        shown_names(list));
  }
  return text;
}

nlohmann::json parameter_lists_json(const Plan& plan) {
  nlohmann::json all = nlohmann::json::array();
  if (plan.adapters.any()) {
    const List list = adapters_of(plan);
    all.push_back({{"group", "lora"},
                   {"rank", plan.adapters.rank},
                   {"alpha", plan.adapters.alpha},
                   {"parameters", list.elements},
                   {"names", list.names}});
  }
  for (const List& list : lists_of(plan))
    all.push_back({{"group", list.label},
                   {"lr_factor", list.lr_factor},
                   {"weight_decay", list.weight_decay},
                   {"parameters", list.elements},
                   {"names", list.names}});
  return all;
}

}  // namespace prun
