// Rotary positions in config.json, which versions of transformers write in three ways (modeling_rope_utils.py).
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "checkpoint/hf/description.h"
#include "ir/attrs.h"

namespace prun::checkpoint {

// Sets base, rope_type and the numbers of a scaling. Throws usage_error for a scaling that the model lacks.
void read_rope(const nlohmann::ordered_json& config, const Rotary& rope, Attrs& to);
// Returns the keys of config.json.
nlohmann::ordered_json rope_config(const Attrs& settled);
// Sets the same options as read_rope, with defaults for those that `given` lacks.
void settle_rope(const Attrs& given, const Rotary& rope, Attrs& of);
// Returns true if an option is one of those.
bool is_rope_option(const std::string& name);

}  // namespace prun::checkpoint
