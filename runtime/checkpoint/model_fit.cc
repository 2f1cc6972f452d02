#include <fmt/format.h>

#include <vector>

#include "base/text.h"
#include "checkpoint/hf/architecture.h"
#include "checkpoint/hf/config.h"
#include "checkpoint/weights.h"

namespace prun::checkpoint {
namespace {

// Returns the arguments that neither shapes determine nor training changes, for a model without a Hugging Face
// counterpart.
Attrs beside_shapes(const Attrs& arguments) {
  Attrs of;
  for (const char* name : {"heads", "choices"})
    if (arguments.has(name)) of.set(name, arguments.integer(name));
  return of;
}

}  // namespace

std::string differing_model(const ModelDescription& there, const ModelDescription& here) {
  if (there.name.empty() || here.name.empty()) return "";
  if (there.name != here.name)
    return fmt::format("they are of prun.models.{}, and the plan has prun.models.{}", there.name, here.name);
  const Description* description = description_for(here.name);
  const auto compared = [&](const Attrs& arguments) {
    return description != nullptr ? settled(*description, arguments) : beside_shapes(arguments);
  };
  const Attrs theirs = compared(there.arguments), ours = compared(here.arguments);
  std::string text;
  for (const auto& [name, value] : theirs.values()) {
    if (!ours.has(name)) continue;
    const Attr& own = ours.values().at(name);
    const bool numbers = own.index() < 2 && value.index() < 2;
    if (own == value || (numbers && theirs.number(name) == ours.number(name))) continue;
    text +=
        fmt::format("{}{} is {} there and {} here", text.empty() ? "" : ", ", name, attr_text(value), attr_text(own));
  }
  return text;
}

std::string differing_tensor(const Weights& there, const std::map<std::string, Shape>& here, bool partial) {
  std::vector<std::string> names;
  for (const auto& [name, weight] : there.tensors) names.push_back(name);
  for (const auto& [name, shape] : here) {
    const auto found = there.tensors.find(name);
    if (found == there.tensors.end() && partial) continue;
    if (found == there.tensors.end()) return fmt::format("there is no {}{}", name, did_you_mean(name, names));
    if (found->second.shape != shape)
      return fmt::format("{} is {} there and {} here", name, shape_text(found->second.shape), shape_text(shape));
  }
  for (const std::string& name : names)
    if (!partial && !here.contains(name)) return fmt::format("there is {}, which this plan has not", name);
  return "";
}

std::string model_text(const ModelDescription& model) {
  if (model.name.empty()) return "a model of its plan's own";
  std::string text;
  for (const auto& [name, value] : model.arguments.values()) {
    const bool flag = name == "tied" || name.ends_with("_bias");
    const auto* word = std::get_if<std::string>(&value);
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", name,
                        flag   ? (model.arguments.integer(name) != 0 ? "true" : "false")
                        : word ? fmt::format("\"{}\"", *word)
                               : attr_text(value));
  }
  return fmt::format("prun.models.{} {{ {} }}", model.name, text);
}

}  // namespace prun::checkpoint
