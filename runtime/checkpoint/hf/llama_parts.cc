// Scaled angles: transformers/modeling_rope_utils.py.
#include "checkpoint/hf/llama_parts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

// Our names of the scaling's numbers, and theirs.
constexpr std::pair<const char*, const char*> kScaling[] = {
    {"rope_factor", "factor"}, {"low_freq_factor", "low_freq_factor"}, {"high_freq_factor", "high_freq_factor"}};

double required(const Json& rope, const char* where, const char* name) {
  if (!rope.contains(name) || rope.at(name).is_null()) throw usage_error(fmt::format("{} has no '{}'", where, name));
  return hf_number(rope, name, 0);
}

void read_scaling(const Json& rope, const char* where, const std::string& type, Attrs& to) {
  if (type != "linear" && type != "llama3")
    throw usage_error(
        fmt::format("the rotary angles are scaled ({} '{}'), and prun has default, linear and llama3", where, type));
  to.set("rope_factor", required(rope, where, "factor"));
  if (type == "linear") return;
  for (const char* name : {"low_freq_factor", "high_freq_factor"}) to.set(name, required(rope, where, name));
  to.set("original_context", static_cast<int64_t>(required(rope, where, "original_max_position_embeddings")));
}

// transformers 5 has rope_parameters, those before it rope_theta and rope_scaling.
void read_rope(const Json& config, double usual_base, Attrs& to) {
  double theta = hf_number(config, "rope_theta", usual_base);
  to.set("rope_type", "default");
  for (const char* where : {"rope_parameters", "rope_scaling"}) {
    if (!config.contains(where) || !config.at(where).is_object()) continue;
    const Json& rope = config.at(where);
    theta = hf_number(rope, "rope_theta", theta);
    const std::string type = hf_text(rope, "rope_type", hf_text(rope, "type", "default"));
    if (type == "default") continue;
    to.set("rope_type", type);
    read_scaling(rope, where, type, to);
  }
  to.set("base", theta);
}

void settle_rope(const Attrs& given, double usual_base, Attrs& of) {
  of.set("base", given.number("base", usual_base));
  const std::string type = given.text("rope_type", "default");
  of.set("rope_type", type);
  if (type == "default") return;
  of.set("rope_factor", given.number("rope_factor", 1));
  if (type == "linear") return;
  of.set("low_freq_factor", given.number("low_freq_factor", 1));
  of.set("high_freq_factor", given.number("high_freq_factor", 4));
  of.set("original_context", given.integer("original_context", 8192));
}

Json rope_config(const Attrs& of) {
  const std::string type = of.text("rope_type");
  Json parameters = {{"rope_theta", of.number("base")}, {"rope_type", type}};
  if (type == "default") return {{"rope_theta", of.number("base")}, {"rope_parameters", parameters}};
  for (const auto& [ours, theirs] : kScaling)
    if (of.has(ours)) parameters[theirs] = of.number(ours);
  if (type == "llama3") parameters["original_max_position_embeddings"] = of.integer("original_context");
  return {{"rope_theta", of.number("base")}, {"rope_parameters", parameters}, {"rope_scaling", parameters}};
}

// q_proj, k_proj, v_proj and o_proj of a block, as our qkv and proj.
void add_attention(const Attrs& of, const std::string& theirs, const std::string& ours, std::vector<HfTensor>& all) {
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

}  // namespace

void hf_read_llama_parts(const Json& config, const HfLlamaUsual& usual, ModelDescription& model) {
  const std::string activation = hf_text(config, "hidden_act", "silu");
  if (activation != "silu")
    throw usage_error(fmt::format("prun.models.{} has silu in its MLP, not {}", model.name, activation));
  Attrs& to = model.arguments;
  to.set("vocab", hf_integer(config, "vocab_size"));
  to.set("layers", hf_integer(config, "num_hidden_layers"));
  to.set("width", hf_integer(config, "hidden_size"));
  to.set("heads", hf_integer(config, "num_attention_heads"));
  to.set("kv_heads", hf_integer(config, "num_key_value_heads", usual.kv_heads));
  to.set("head_size", hf_integer(config, "head_dim", 0));
  to.set("hidden", hf_integer(config, "intermediate_size"));
  to.set("context", hf_integer(config, "max_position_embeddings", usual.context));
  to.set("eps", hf_number(config, "rms_norm_eps", usual.eps));
  to.set("tied", int64_t{hf_flag(config, "tie_word_embeddings", false)});
  read_rope(config, usual.base, to);
}

Attrs hf_settle_llama_parts(const Attrs& given, double usual_base, int64_t usual_hidden) {
  Attrs of;
  for (const char* name : {"vocab", "layers", "width", "heads", "tied"}) of.set(name, given.integer(name));
  const auto or_usual = [&](const char* name, int64_t usual) {
    of.set(name, given.integer(name) > 0 ? given.integer(name) : usual);
  };
  or_usual("kv_heads", of.integer("heads"));
  or_usual("head_size", of.integer("width") / of.integer("heads"));
  or_usual("hidden", usual_hidden);
  of.set("eps", given.number("eps", 1e-5));
  settle_rope(given, usual_base, of);
  return of;
}

Json hf_llama_parts_config(const Attrs& of, int64_t context) {
  Json config = {{"max_position_embeddings", context},
                 {"hidden_size", of.integer("width")},
                 {"intermediate_size", of.integer("hidden")},
                 {"num_hidden_layers", of.integer("layers")},
                 {"num_attention_heads", of.integer("heads")},
                 {"num_key_value_heads", of.integer("kv_heads")},
                 {"head_dim", of.integer("head_size")},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", of.number("eps")}};
  config.update(rope_config(of));
  return config;
}

std::vector<HfTensor> hf_llama_parts_tensors(const Attrs& of, const HfBlockRest& rest) {
  const int64_t width = of.integer("width"), vocab = of.integer("vocab");
  std::vector<HfTensor> all;
  all.push_back(hf_whole("model.embed_tokens.weight", "embed.token.weight", {vocab, width}));
  for (int64_t i = 0; i < of.integer("layers"); ++i) {
    const std::string theirs = fmt::format("model.layers.{}.", i), ours = fmt::format("block{}.", i);
    all.push_back(hf_whole(theirs + "input_layernorm.weight", ours + "ln1.weight", {width}));
    add_attention(of, theirs, ours, all);
    all.push_back(hf_whole(theirs + "post_attention_layernorm.weight", ours + "ln2.weight", {width}));
    rest(theirs, ours, all);
  }
  all.push_back(hf_whole("model.norm.weight", "head.ln.weight", {width}));
  if (of.integer("tied") == 0) all.push_back(hf_turned("lm_head.weight", "head.logits.weight", width, vocab));
  return all;
}

}  // namespace prun::checkpoint
