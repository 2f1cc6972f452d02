#include "checkpoint/hf/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/error.h"
#include "base/json_whole.h"
#include "base/text.h"
#include "checkpoint/hf/formula.h"
#include "checkpoint/hf/rope.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
T member(const Json& config, const std::string& name, const T& usual) {
  if (!config.contains(name) || config.at(name).is_null()) return usual;
  try {
    if constexpr (std::is_same_v<T, int64_t>) return json_whole(config.at(name));
    return config.at(name).get<T>();
  } catch (const Json::exception&) {
    throw Error(Exit::checkpoint_invalid, fmt::format("'{}' is {}", name, config.at(name).dump()));
  }
}

double as_number(const Attr& attr) {
  const auto* whole = std::get_if<int64_t>(&attr);
  return whole != nullptr ? static_cast<double>(*whole) : std::get<double>(attr);
}

bool alike(const Attr& a, const Attr& b) {
  return a == b || (a.index() < 2 && b.index() < 2 && as_number(a) == as_number(b));
}

bool is_zero(const Attrs& attrs, const std::string& name) {
  return !attrs.has(name) || alike(attrs.values().at(name), int64_t{0});
}

Attr value(const Description& description, const DescribedValue& described, const Attrs& settled) {
  if (described.formula) return value_of(description, *described.formula, settled);
  return described.constant;
}

// Returns the first attributes, and those of the others that they lack.
Attrs joined(Attrs first, const Attrs& others) {
  for (const auto& [name, attr] : others.values())
    if (!first.has(name)) first.set(name, attr);
  return first;
}

template <class Pairs>
auto found_in(const Pairs& pairs, const std::string& name) {
  return std::ranges::find_if(pairs, [&](const auto& one) { return one.first == name; });
}

// Returns n if the entries at n, 2n, .. are 0 and the others are not; 0: none is.
int64_t period_in(const Json& config, const DescribedOption& option) {
  const Json& list = config.at(option.list);
  std::vector<bool> zeros;
  for (const Json& one : list) zeros.push_back(one.is_number() ? one == 0 : one == false);
  const auto first = std::ranges::find(zeros, true);
  if (first == zeros.end()) return 0;
  const int64_t period = first - zeros.begin() + 1;
  for (int64_t i = 0; i < std::ssize(zeros); ++i)
    if (zeros[i] != ((i + 1) % period == 0))
      throw usage_error(
          fmt::format("'{}' is {}: prun has only lists in which each n-th entry is 0", option.list, list.dump()));
  return period;
}

Attr read_option(const Description& description, const Json& config, const DescribedOption& option,
                 const Attrs& known) {
  if (option.is) return value(description, *option.is, known);
  if (!option.list.empty() && config.contains(option.list) && config.at(option.list).is_array())
    return period_in(config, option);
  if (!option.usual) return hf_integer(config, option.key);
  const Attr usual = value(description, *option.usual, known);
  if (!option.allowed.empty()) {
    const std::string theirs =
        hf_text(config, option.key, std::holds_alternative<std::string>(usual) ? std::get<std::string>(usual) : "");
    const auto found = found_in(option.allowed, theirs);
    if (found != option.allowed.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [name, ours] : option.allowed) names.push_back(name);
    throw usage_error(
        fmt::format("'{}' is {}, and prun.models.{} has {}", option.key, theirs, description.model, join(names, ", ")));
  }
  if (option.usual->flag) return int64_t{hf_flag(config, option.key, std::get<int64_t>(usual) != 0)};
  if (const auto* number = std::get_if<double>(&usual)) return hf_number(config, option.key, *number);
  if (const auto* text = std::get_if<std::string>(&usual)) return hf_text(config, option.key, *text);
  return hf_integer(config, option.key, std::get<int64_t>(usual));
}

void check(const Description& description, const Requirement& rule, const Json& config, const Attrs& settled) {
  if (!rule.when.empty() && !hf_flag(config, rule.when, false)) return;
  const Json found = config.value(rule.key, rule.usual);
  bool fits = true;
  if (rule.at_least.given()) {
    const int64_t least = value_of(description, rule.at_least, settled);
    fits = found.is_null() || (found.is_number() && (found == 0 || found >= least));
  } else {
    fits = std::ranges::find(rule.allowed, found) != rule.allowed.end();
  }
  if (fits) return;
  std::string message = rule.because;
  const std::string shown = found.is_string() ? found.get<std::string>() : found.dump();
  for (const auto& [mark, text] :
       {std::pair<std::string, std::string>{"{value}", shown}, {"{model}", description.model}})
    if (const size_t at = message.find(mark); at != std::string::npos) message.replace(at, mark.size(), text);
  throw usage_error(message.empty() ? fmt::format("'{}' is {}, which prun.models.{} cannot express", rule.key, shown,
                                                  description.model)
                                    : message);
}

Json as_json(const Attr& attr) {
  return std::visit([](const auto& held) { return Json(held); }, attr);
}

}  // namespace

ModelDescription read_config(const Description& description, const Json& config) {
  ModelDescription model{description.model, {}};
  Attrs& to = model.arguments;
  for (const DescribedOption& option : description.options)
    to.set(option.ours, read_option(description, config, option, to));
  if (description.rope) read_rope(config, *description.rope, to);
  const Attrs known = joined(settled(description, to), to);
  for (const Requirement& rule : description.require) check(description, rule, config, known);
  return model;
}

Attrs settled(const Description& description, const Attrs& given) {
  Attrs of;
  const auto is_free = [&](const std::string& name) {
    return std::ranges::find(description.free, name) != description.free.end();
  };
  for (const DescribedOption& option : description.options)
    if (given.has(option.ours) && !is_free(option.ours)) of.set(option.ours, given.values().at(option.ours));
  // Formulas read options in `given` that are not among the results, such as the context.
  for (const auto& [name, usual] : description.defaults) {
    if (given.has(name) && (!is_zero(given, name) || usual.flag)) {
      of.set(name, given.values().at(name));
      continue;
    }
    of.set(name, value(description, usual, joined(of, given)));
  }
  if (description.rope) settle_rope(given, *description.rope, of);
  return of;
}

Json written_config(const Description& description, const Attrs& arguments) {
  const Attrs of = settled(description, arguments);
  const Attrs all = joined(of, arguments);
  const auto attr_of = [&](const std::string& name) -> Attr {
    return all.has(name) ? all.values().at(name) : Attr(int64_t{0});
  };
  Json config = Json::object();
  for (const DescribedOption& option : description.options) {
    if (option.is) continue;
    const Attr ours = attr_of(option.ours);
    const auto text = std::ranges::find_if(option.allowed, [&](const auto& one) { return alike(one.second, ours); });
    if (text != option.allowed.end())
      config[option.key] = text->first;
    else if (option.usual && option.usual->flag)
      config[option.key] = !alike(ours, int64_t{0});
    else if (option.usual && std::holds_alternative<double>(option.usual->constant))
      config[option.key] = as_number(ours);
    else
      config[option.key] = as_json(ours);
    if (option.list.empty()) continue;
    const int64_t period = std::get<int64_t>(ours);
    Json list = Json::array();
    for (int64_t i = 0; i < of.integer("layers"); ++i)
      list.push_back(static_cast<int64_t>(period == 0 || (i + 1) % period != 0));
    config[option.list] = list;
  }
  for (const Requirement& rule : description.require)
    if (!rule.allowed.empty()) config[rule.key] = rule.allowed.front();
  for (const auto& [key, constant] : description.config.items())
    if (constant.is_object() && constant.contains("number"))
      config[key] = as_number(attr_of(constant.at("number").get<std::string>()));
    else if (constant.is_object() && constant.contains("formula"))
      config[key] = value_of(description, {constant.at("formula").get<std::string>(), {}}, all);
    else
      config[key] = constant;
  if (description.rope) config.update(rope_config(of));
  return config;
}

std::string unfit_argument(const Description& description, const Attrs& arguments) {
  const Attrs of = settled(description, arguments);
  const auto differs = [&](const std::string& name, const Attr& here, const Attr& there) {
    return fmt::format("{} is {}, and {} has {}", name, attr_text(here), description.architecture, attr_text(there));
  };
  for (const auto& [name, given] : arguments.values()) {
    if (std::ranges::find(description.free, name) != description.free.end()) continue;
    const Attr& have = of.has(name) ? of.values().at(name) : given;
    const auto option = std::ranges::find(description.options, name, &DescribedOption::ours);
    const auto usual = found_in(description.defaults, name);
    if (option != description.options.end()) {
      if (option->is) {
        if (const Attr only = value(description, *option->is, of); !alike(have, only)) return differs(name, have, only);
      } else if (!option->allowed.empty() &&
                 std::ranges::none_of(option->allowed, [&](const auto& one) { return alike(one.second, have); })) {
        return fmt::format("{} is {}, which {} does not have", name, attr_text(have), description.architecture);
      }
    } else if (usual != description.defaults.end()) {
      if (const Attr only = value(description, usual->second, of); !alike(have, only)) return differs(name, have, only);
    } else if (description.rope && is_rope_option(name)) {
      const std::string type = of.text("rope_type");
      if (name == "rope_type" && type != "default" &&
          std::ranges::find(description.rope->scalings, type) == description.rope->scalings.end())
        return fmt::format("rope_type is {}, which {} does not have", type, description.architecture);
    }
  }
  // An architecture that always has a feature cannot express a model whose older checkpoint does not record it.
  for (const DescribedOption& option : description.options)
    if (option.is && of.has(option.ours) &&
        std::ranges::find(description.free, option.ours) == description.free.end()) {
      const Attr only = value(description, *option.is, of);
      if (!alike(of.values().at(option.ours), only)) return differs(option.ours, of.values().at(option.ours), only);
    }
  return "";
}

std::string unknown_argument(const Description& description, const Attrs& arguments) {
  const std::vector<std::string>& free = description.free;
  for (const auto& [name, given] : arguments.values())
    if (std::ranges::find(description.options, name, &DescribedOption::ours) == description.options.end() &&
        found_in(description.defaults, name) == description.defaults.end() &&
        std::ranges::find(free, name) == free.end() && !(description.rope && is_rope_option(name)))
      return name;
  return "";
}

int64_t value_of(const Description& description, const Formula& formula, const Attrs& settled) {
  return evaluate(formula.text, [&](const std::string& name) -> int64_t {
    if (settled.has(name)) {
      const Attr& attr = settled.values().at(name);
      if (const auto* whole = std::get_if<int64_t>(&attr)) return *whole;
    }
    const auto size = found_in(description.sizes, name);
    if (size != description.sizes.end()) {
      if (size->second.formula) return value_of(description, *size->second.formula, settled);
      if (const auto* whole = std::get_if<int64_t>(&size->second.constant)) return *whole;
    }
    throw Error(Exit::checkpoint_invalid,
                fmt::format("'{}' needs the option '{}', which the model does not have", formula.text, name),
                formula.site);
  });
}

int64_t hf_integer(const Json& config, const std::string& name) {
  const int64_t value = member<int64_t>(config, name, 0);
  if (value < 1)
    throw Error(Exit::checkpoint_invalid,
                fmt::format("'{}' {}", name, config.contains(name) ? "is " + config.at(name).dump() : "is missing"));
  return value;
}

int64_t hf_integer(const Json& config, const std::string& name, int64_t usual) { return member(config, name, usual); }
double hf_number(const Json& config, const std::string& name, double usual) { return member(config, name, usual); }
bool hf_flag(const Json& config, const std::string& name, bool usual) { return member(config, name, usual); }
std::string hf_text(const Json& config, const std::string& name, const std::string& usual) {
  return member(config, name, usual);
}

}  // namespace prun::checkpoint
