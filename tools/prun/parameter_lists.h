// The members of each optimizer group and the frozen parameters, which `prun check` lists.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ir/plan.h"

namespace prun {

// Returns a line per group and one for frozen parameters; "" if the plan has neither. Layers are listed together:
// "block*.up.bias".
std::string parameter_lists(const Plan& plan);
// Returns the same with all names: [{ "group": "*.bias", "lr_factor", "weight_decay", "parameters", "names" }].
nlohmann::json parameter_lists_json(const Plan& plan);

}  // namespace prun
