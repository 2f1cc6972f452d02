// LlamaForCausalLM and MixtralForCausalLM (transformers/models/llama/modeling_llama.py, mixtral/modeling_mixtral.py)
// are prun.models.llama and prun.models.mixtral. They differ only in the part of a block after its attention.
//
// Surprising facts: both sides rotate the pairs (i, i + size / 2) of a head, so rows of q and k keep their order.
// (Meta's own files rotate neighbours; transformers permuted them on conversion.) Each expert of Mixtral has its own
// matrices w1 (gate), w2 (down) and w3 (up), [out, in]; each of ours is one tensor [experts, in, out].
#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "checkpoint/hf/architecture.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

// `kv_heads` 0: equal to heads.
constexpr HfMember kLlamaMembers[] = {{"vocab", "vocab_size"},
                                      {"layers", "num_hidden_layers"},
                                      {"width", "hidden_size"},
                                      {"heads", "num_attention_heads"},
                                      {"kv_heads", "num_key_value_heads", 0},
                                      {"head_size", "head_dim", 0},
                                      {"hidden", "intermediate_size"},
                                      {"context", "max_position_embeddings", 2048}};
constexpr HfMember kMixtralMembers[] = {{"vocab", "vocab_size"},
                                        {"layers", "num_hidden_layers"},
                                        {"width", "hidden_size"},
                                        {"heads", "num_attention_heads"},
                                        {"kv_heads", "num_key_value_heads", 8},
                                        {"head_size", "head_dim", 0},
                                        {"hidden", "intermediate_size"},
                                        {"context", "max_position_embeddings", int64_t{4096} * 32},
                                        {"experts", "num_local_experts", 8},
                                        {"choices", "num_experts_per_tok", 2}};

// The config.json of a model of the family, and the defaults of transformers.
struct Config {
  std::span<const HfMember> members;
  double base, eps;
};
constexpr Config kLlama = {kLlamaMembers, 10000, 1e-6}, kMixtral = {kMixtralMembers, 1e6, 1e-5};

// Adds the tensors of block i after its attention and second norm; the two texts are the prefixes of its names.
using BlockRest = std::function<void(const std::string& theirs, const std::string& ours, std::vector<HfTensor>& all)>;

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

// Scaled angles: transformers/modeling_rope_utils.py. transformers 5 has rope_parameters; earlier versions have
// rope_theta and rope_scaling.
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

// Maps q_proj, k_proj, v_proj and o_proj of a block to our qkv and proj.
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
  all.push_back(hf_transposed(theirs + "self_attn.o_proj.weight", ours + "proj.weight", queries, width));
  if (bias) all.push_back(hf_whole(theirs + "self_attn.o_proj.bias", ours + "proj.bias", {width}));
}

// Throws usage_error if our model cannot express config.json.
void read_llama_parts(const Json& config, const Config& known, ModelDescription& model) {
  const std::string activation = hf_text(config, "hidden_act", "silu");
  if (activation != "silu")
    throw usage_error(fmt::format("prun.models.{} has silu in its MLP, not {}", model.name, activation));
  Attrs& to = model.arguments;
  hf_read(config, known.members, to);
  to.set("eps", hf_number(config, "rms_norm_eps", known.eps));
  to.set("tied", int64_t{hf_flag(config, "tie_word_embeddings", false)});
  read_rope(config, known.base, to);
}

Attrs settle_llama_parts(const Attrs& given, double usual_base, int64_t usual_hidden) {
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

Json llama_parts_config(Attrs of, int64_t context, const Config& known) {
  of.set("context", context);
  Json config = hf_written(of, known.members);
  config.update({{"hidden_act", "silu"}, {"rms_norm_eps", of.number("eps")}});
  config.update(rope_config(of));
  return config;
}

std::vector<HfTensor> llama_parts_tensors(const Attrs& of, const BlockRest& rest) {
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
  if (of.integer("tied") == 0) all.push_back(hf_transposed("lm_head.weight", "head.logits.weight", width, vocab));
  return all;
}

ModelDescription llama_model(const Json& config) {
  ModelDescription model{"llama", {}};
  read_llama_parts(config, kLlama, model);
  for (const char* name : {"attention_bias", "mlp_bias"})
    model.arguments.set(name, int64_t{hf_flag(config, name, false)});
  return model;
}

Attrs llama_settled(const Attrs& given) {
  Attrs of = settle_llama_parts(given, kLlama.base, (given.integer("width") + 2) / 3 * 8);
  for (const char* name : {"attention_bias", "mlp_bias"}) of.set(name, given.integer(name));
  return of;
}

Json llama_config(const Attrs& given) {
  const Attrs of = llama_settled(given);
  Json config = llama_parts_config(of, given.integer("context"), kLlama);
  for (const char* name : {"attention_bias", "mlp_bias"}) config[name] = of.integer(name) != 0;
  return config;
}

std::vector<HfTensor> llama_tensors(const Attrs& of) {
  const int64_t width = of.integer("width"), hidden = of.integer("hidden");
  return llama_parts_tensors(of, [&](const std::string& theirs, const std::string& ours, std::vector<HfTensor>& all) {
    const auto linear = [&](const char* their, const char* our, int64_t in, int64_t out) {
      all.push_back(hf_transposed(theirs + their + ".weight", ours + our + ".weight", in, out));
      if (of.integer("mlp_bias") != 0) all.push_back(hf_whole(theirs + their + ".bias", ours + our + ".bias", {out}));
    };
    linear("mlp.gate_proj", "gate", width, hidden);
    linear("mlp.up_proj", "up", width, hidden);
    linear("mlp.down_proj", "down", hidden, width);
  });
}

ModelDescription mixtral_model(const Json& config) {
  ModelDescription model{"mixtral", {}};
  read_llama_parts(config, kMixtral, model);
  // A window of at least the context masks nothing.
  if (const int64_t window = hf_integer(config, "sliding_window", 0);
      window > 0 && window < model.arguments.integer("context"))
    throw usage_error(fmt::format("its attention sees {} tokens (sliding_window), prun's all", window));
  return model;
}

Attrs mixtral_settled(const Attrs& given) {
  Attrs of = settle_llama_parts(given, kMixtral.base, (given.integer("width") * 7 + 15) / 16 * 8);
  for (const char* name : {"experts", "choices"}) of.set(name, given.integer(name));
  return of;
}

Json mixtral_config(const Attrs& given) {
  const Attrs of = mixtral_settled(given);
  Json config = llama_parts_config(of, given.integer("context"), kMixtral);
  config.update({{"sliding_window", nullptr}, {"router_aux_loss_coef", given.number("aux", 0.001)}});
  return config;
}

std::vector<HfTensor> mixtral_tensors(const Attrs& of) {
  const int64_t width = of.integer("width"), hidden = of.integer("hidden"), experts = of.integer("experts");
  return llama_parts_tensors(of, [&](const std::string& theirs, const std::string& ours, std::vector<HfTensor>& all) {
    const std::string moe = theirs + "block_sparse_moe.";
    all.push_back(hf_transposed(moe + "gate.weight", ours + "moe.router.weight", width, experts));
    const auto expert = [&](int64_t e, const char* their, const char* our, int64_t in, int64_t out) {
      all.push_back({fmt::format("{}experts.{}.{}.weight", moe, e, their),
                     ours + our,
                     {experts, in, out},
                     {e, 0, 0},
                     {1, in, out},
                     {2, 1}});
    };
    for (int64_t e = 0; e < experts; ++e) {
      expert(e, "w1", "moe.gate.weight", width, hidden);
      expert(e, "w2", "moe.down.weight", hidden, width);
      expert(e, "w3", "moe.up.weight", width, hidden);
    }
  });
}

}  // namespace

HfArchitecture hf_llama() {
  return {"LlamaForCausalLM",      "llama", "llama", "model.", llama_model, llama_config, llama_tensors, llama_settled,
          {".rotary_emb.inv_freq"}};
}

HfArchitecture hf_mixtral() {
  return {"MixtralForCausalLM",    "mixtral",      "mixtral",       "model.",
          mixtral_model,           mixtral_config, mixtral_tensors, mixtral_settled,
          {".rotary_emb.inv_freq"}};
}

}  // namespace prun::checkpoint
