#include "initial_weights.h"

#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/model_fit.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"
#include "ckpt.h"

namespace prun {
namespace {

using checkpoint::Weights;

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
    std::string problem = checkpoint::differing_model(weights.model, plan.model);
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
