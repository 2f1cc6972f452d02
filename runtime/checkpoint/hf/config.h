// config.json of transformers <-> the arguments of a model of prun.models, by a description.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "checkpoint/hf/description.h"
#include "ir/model_description.h"

namespace prun::checkpoint {

// Returns the model and its arguments. Throws usage_error for a config that prun's model cannot express.
ModelDescription read_config(const Description& description, const nlohmann::ordered_json& config);
// Returns the keys that `settled` arguments determine; `arguments`: all of them.
nlohmann::ordered_json written_config(const Description& description, const Attrs& arguments);
// Returns the arguments that weights depend on, with defaults in place of 0.
Attrs settled(const Description& description, const Attrs& arguments);
// Describes the first argument that this architecture cannot express, "qkv_bias is 1, and ... has 0"; "" = none.
std::string unfit_argument(const Description& description, const Attrs& arguments);
// Returns the first argument that the description does not mention; "" = none.
std::string unknown_argument(const Description& description, const Attrs& arguments);
// Returns the value of a formula. Throws checkpoint_invalid if an option is missing.
int64_t value_of(const Description& description, const Formula& formula, const Attrs& settled);

// Return a member of the config: a required one, or `usual` if it is missing or null.
int64_t hf_integer(const nlohmann::ordered_json& config, const std::string& name);
int64_t hf_integer(const nlohmann::ordered_json& config, const std::string& name, int64_t usual);
double hf_number(const nlohmann::ordered_json& config, const std::string& name, double usual);
bool hf_flag(const nlohmann::ordered_json& config, const std::string& name, bool usual);
std::string hf_text(const nlohmann::ordered_json& config, const std::string& name, const std::string& usual);

}  // namespace prun::checkpoint
