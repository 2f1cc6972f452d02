// What Llama and Mixtral share, all but what a block has behind its attention: their config.json and our arguments,
// scaled rotary angles among them, and the tensors.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/hf/architecture.h"

namespace prun::checkpoint {

// What transformers takes where config.json does not say.
struct HfLlamaUsual {
  int64_t kv_heads, context;  // 0: as many as heads
  double base, eps;
};

// Throws usage_error where our model cannot be what config.json says.
void hf_read_llama_parts(const nlohmann::ordered_json& config, const HfLlamaUsual& usual, ModelDescription& model);
Attrs hf_settle_llama_parts(const Attrs& given, double usual_base, int64_t usual_hidden);
nlohmann::ordered_json hf_llama_parts_config(const Attrs& settled, int64_t context);
// `rest` adds what block i has behind its attention and second norm; the two texts are its names' beginnings.
using HfBlockRest = std::function<void(const std::string& theirs, const std::string& ours, std::vector<HfTensor>& all)>;
std::vector<HfTensor> hf_llama_parts_tensors(const Attrs& settled, const HfBlockRest& rest);

}  // namespace prun::checkpoint
