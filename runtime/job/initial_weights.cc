#include "job/initial_weights.h"

#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "checkpoint/model_fit.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"

namespace prun {
namespace {

using checkpoint::Weights;

std::map<std::string, Shape> parameters_of(const Plan& plan) {
  std::map<std::string, Shape> shapes;
  for (const Value& value : plan.graph.values)
    if (value.kind == ValueKind::parameter) shapes[value.name] = value.type.shape;
  return shapes;
}

}  // namespace

void require_weights_fit(const Plan& plan, bool whole) {
  if (!plan.initial_weights) return;
  try {
    const Weights weights = checkpoint::open_weights(plan.initial_weights->path);
    std::string problem = checkpoint::differing_model(weights.model, plan.model);
    if (problem.empty()) problem = checkpoint::differing_tensor(weights, parameters_of(plan));
    if (!problem.empty()) {
      if (!weights.model.name.empty())
        problem += fmt::format("; there it is {}", checkpoint::model_text(weights.model));
      throw Error(Exit::checkpoint_invalid, fmt::format("the weights of {}, {}, do not fit this plan: {}",
                                                        weights.folder, weights.origin, problem));
    }
    if (whole && weights.checkpoint) checkpoint::Reader(weights.folder).verify();
  } catch (const Error& error) {
    throw Error(error.code(), error.message(), plan.initial_weights->site);
  }
}

}  // namespace prun
