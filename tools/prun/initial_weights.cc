#include "initial_weights.h"

#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/hf_architecture.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"
#include "ckpt.h"

namespace prun {
namespace {

using checkpoint::Weights;

// What is computed with the same weights differs with heads, epsilon, the base of angles: shapes do not tell them.
std::string differing_argument(const ModelDescription& theirs, const ModelDescription& ours) {
  if (theirs.name.empty() || ours.name.empty()) return "";
  if (theirs.name != ours.name)
    return fmt::format("they are of prun.models.{}, and the plan has prun.models.{}", theirs.name, ours.name);
  const checkpoint::HfArchitecture* architecture = checkpoint::hf_architecture_for(ours.name);
  if (architecture == nullptr) return "";
  const Attrs there = architecture->settled(theirs.arguments), here = architecture->settled(ours.arguments);
  std::string text;
  for (const auto& [name, value] : there.values()) {
    const Attr& own = here.values().at(name);
    const bool same = own == value || (own.index() < 2 && value.index() < 2 && there.number(name) == here.number(name));
    if (same) continue;
    text +=
        fmt::format("{}{} is {} there and {} here", text.empty() ? "" : ", ", name, attr_text(value), attr_text(own));
  }
  return text;
}

// The first parameter that is missing on one of both sides, or of another shape.
std::string differing_tensor(const Weights& weights, const Plan& plan) {
  std::map<std::string, Shape> wanted;
  for (const Value& value : plan.graph.values)
    if (value.kind == ValueKind::parameter) wanted[value.name] = value.type.shape;
  std::vector<std::string> names;
  for (const auto& [name, weight] : weights.tensors) names.push_back(name);
  for (const auto& [name, shape] : wanted) {
    const auto found = weights.tensors.find(name);
    if (found == weights.tensors.end())
      return fmt::format("the plan's model has {}, and they have not{}", name, did_you_mean(name, names));
    if (found->second.shape != shape)
      return fmt::format("{} is {} there and {} here", name, shape_text(found->second.shape), shape_text(shape));
  }
  for (const std::string& name : names)
    if (!wanted.contains(name)) return fmt::format("they have {}, which the plan's model has not", name);
  return "";
}

}  // namespace

void require_weights_fit(const Plan& plan, bool whole) {
  if (!plan.initial_weights) return;
  try {
    const Weights weights = checkpoint::open_weights(plan.initial_weights->path);
    std::string problem = differing_argument(weights.model, plan.model);
    if (problem.empty()) problem = differing_tensor(weights, plan);
    if (!problem.empty()) {
      if (!weights.model.name.empty()) problem += fmt::format("; there it is {}", model_text(weights.model));
      throw Error(Exit::checkpoint_invalid, fmt::format("the weights of {}, {}, do not fit this plan: {}",
                                                        weights.folder, weights.origin, problem));
    }
    if (whole && weights.checkpoint) checkpoint::Reader(weights.folder).verify();
  } catch (const Error& error) {
    throw Error(error.code(), error.message(), plan.initial_weights->site);
  }
}

}  // namespace prun
