#include "checkpoint/hf_rotary.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace prun::checkpoint {

// transformers 5 has rope_parameters, those before it rope_theta and rope_scaling.
double hf_rope_theta(const nlohmann::ordered_json& config, double usual) {
  double theta = hf_number(config, "rope_theta", usual);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (!config.contains(name) || !config.at(name).is_object()) continue;
    const nlohmann::ordered_json& rope = config.at(name);
    const std::string type = hf_text(rope, "rope_type", hf_text(rope, "type", "default"));
    if (type != "default")
      throw usage_error(fmt::format("the rotary angles are scaled ({} '{}'), which prun has not", name, type));
    theta = hf_number(rope, "rope_theta", theta);
  }
  return theta;
}

void hf_attention(const Attrs& of, const std::string& theirs, const std::string& ours, std::vector<HfTensor>& all) {
  const int64_t width = of.integer("width"), size = of.integer("head_size");
  const int64_t queries = of.integer("heads") * size, shared = of.integer("kv_heads") * size;
  const int64_t fused = queries + 2 * shared;
  const bool bias = of.integer("attention_bias") != 0;
  int64_t begin = 0;
  for (const char* name : {"q", "k", "v"}) {
    const int64_t count = *name == 'q' ? queries : shared;
    const std::string their = fmt::format("{}self_attn.{}_proj", theirs, name);
    all.push_back(hf_columns(their + ".weight", ours + "qkv.weight", width, fused, begin, count));
    if (bias) all.push_back({their + ".bias", ours + "qkv.bias", {fused}, {begin}, {count}, {0}});
    begin += count;
  }
  all.push_back(hf_turned(theirs + "self_attn.o_proj.weight", ours + "proj.weight", queries, width));
  if (bias) all.push_back(hf_whole(theirs + "self_attn.o_proj.bias", ours + "proj.bias", {width}));
}

}  // namespace prun::checkpoint
