// What Llama and Mixtral share: rotary positions, and attention whose q, k and v are layers of their own.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/hf_architecture.h"

namespace prun::checkpoint {

// The base of the angles. Throws usage_error where they are scaled in a way that prun has not.
double hf_rope_theta(const nlohmann::ordered_json& config, double usual);
// q_proj, k_proj, v_proj and o_proj of a block, as our qkv and proj. `of`: settled arguments.
void hf_attention(const Attrs& of, const std::string& theirs, const std::string& ours, std::vector<HfTensor>& all);

}  // namespace prun::checkpoint
