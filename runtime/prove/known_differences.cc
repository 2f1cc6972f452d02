// Differences between the real plan and its proof. The small run stores all floats as f64, and every expert has a slot
// for each token if ranks split the tokens (small_plan.h), because otherwise the ranks would not equal one rank.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "ir/ops.h"
#include "prove/small_plan.h"

namespace prun {
namespace {

// Returns whether an expert may have fewer slots than there are tokens, on one rank if not on these: the share of the
// tokens that it has slots for is rounded up.
bool drops_choices(const Plan& plan) {
  return std::ranges::any_of(
      plan.graph.nodes, [](const Node& node) { return node.op == &ops::route && node.attrs.integer("capacity") > 0; });
}

// Returns the dtype in which an action's tensor would be transferred without `wire`.
Dtype usual_wire(const Plan& plan, const HookAction& action) {
  const bool parameters = action.target == "params" && action.kind == ops::all_gather.name;
  return parameters || plan.param_dtype == Dtype::f64 ? plan.param_dtype : Dtype::f32;
}

void add_wires(const Plan& plan, const Strategy& strategy, std::vector<std::string>& all) {
  const auto add = [&](const HookAction& action) {
    if (action.wire.empty()) return;
    const std::optional<Dtype> wire = parse_dtype(action.wire);
    if (!wire || dtype_bytes(*wire) >= dtype_bytes(usual_wire(plan, action))) return;
    std::string text =
        fmt::format("the rounding of wire = \"{}\" ({} over {})", action.wire, strategy.name, action.axis);
    if (plan.mesh.size(action.axis) > 1 && std::find(all.begin(), all.end(), text) == all.end())
      all.push_back(std::move(text));
  };
  for (const StrategyUnit& unit : strategy.units) {
    for (const Hook& hook : unit.hooks)
      for (const HookAction& action : hook.actions) add(action);
    for (const HookAction& action : unit.sync) add(action);
  }
}

}  // namespace

std::vector<std::string> known_differences(const Plan& plan) {
  std::vector<std::string> all;
  if (splits_tokens(plan) && drops_choices(plan))
    all.emplace_back("the capacity of experts (each rank drops choices of its own tokens)");
  for (const Strategy& strategy : plan.strategies) add_wires(plan, strategy, all);
  if (plan.param_dtype == Dtype::bf16 && plan.mesh.ranks() > 1)
    all.emplace_back("the rounding of casts to bf16 (dtype = \"bf16\")");
  return all;
}

}  // namespace prun
