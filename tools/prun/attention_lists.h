// How the attentions of a model are computed, which `prun check` lists.
#pragma once
#include <string>

#include "ir/plan.h"

namespace prun {

// Returns a line for each way and reason; "" if all attentions have a fused qkv and no further rules.
std::string attention_lists(const Plan& plan);

}  // namespace prun
