// The architectures that prun has descriptions of, and the choice among them.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/hf/description.h"
#include "checkpoint/weights.h"

namespace prun::checkpoint {

inline constexpr const char* kOwnDescription = "prun.yaml";  // in a folder, describes that folder

// Sets the folder of prun's descriptions. Call it once, before other threads start.
void set_descriptions_folder(std::string folder);

// Returns prun's descriptions; those that are like no other come first.
const std::vector<Description>& known_descriptions();
std::string name_of(const Description& description);  // in messages
bool is_known(const Description& description);        // is one of prun's
// Returns the description of a config.json: the folder's own, or that of its architecture. Throws checkpoint_invalid
// with the list of known ones if there is none.
Description description_of(const nlohmann::ordered_json& config, const std::string& folder);
// Returns the description by which checkpoints of prun.models.NAME are compared, or null.
const Description* description_for(const std::string& model);
// Returns a description by the name of an architecture ("mistral"), a file, or a folder that has one. Throws
// usage_error.
Description description_named(const std::string& name);
// Returns the first description that can express a checkpoint's model. Throws checkpoint_invalid.
const Description& description_to_export(const Weights& weights);

}  // namespace prun::checkpoint
