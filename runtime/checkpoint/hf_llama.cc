// LlamaForCausalLM (transformers/models/llama/modeling_llama.py), which is prun.models.llama.
//
// Surprising fact: both turn the pairs (i, i + size / 2) of a head, so that rows of q and k stay in their order (Meta's
// own files turn neighbours; transformers permuted them when it took them over).
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/hf_architecture.h"
#include "checkpoint/hf_rotary.h"

namespace prun::checkpoint {
namespace {

ModelDescription llama_model(const nlohmann::ordered_json& config) {
  const std::string activation = hf_text(config, "hidden_act", "silu");
  if (activation != "silu") throw usage_error(fmt::format("prun.models.llama has silu in its MLP, not {}", activation));
  ModelDescription model{"llama", {}};
  Attrs& to = model.arguments;
  to.set("vocab", hf_integer(config, "vocab_size"));
  to.set("layers", hf_integer(config, "num_hidden_layers"));
  to.set("width", hf_integer(config, "hidden_size"));
  to.set("heads", hf_integer(config, "num_attention_heads"));
  to.set("kv_heads", hf_integer(config, "num_key_value_heads", 0));
  to.set("head_size", hf_integer(config, "head_dim", 0));
  to.set("hidden", hf_integer(config, "intermediate_size"));
  to.set("context", hf_integer(config, "max_position_embeddings", 2048));
  to.set("base", hf_rope_theta(config, 10000));
  to.set("eps", hf_number(config, "rms_norm_eps", 1e-6));
  to.set("attention_bias", int64_t{hf_flag(config, "attention_bias", false)});
  to.set("mlp_bias", int64_t{hf_flag(config, "mlp_bias", false)});
  to.set("tied", int64_t{hf_flag(config, "tie_word_embeddings", false)});
  return model;
}

Attrs llama_settled(const Attrs& given) {
  Attrs of;
  for (const char* name : {"vocab", "layers", "width", "heads", "attention_bias", "mlp_bias", "tied"})
    of.set(name, given.integer(name));
  const auto or_usual = [&](const char* name, int64_t usual) {
    of.set(name, given.integer(name) > 0 ? given.integer(name) : usual);
  };
  const int64_t width = of.integer("width"), heads = of.integer("heads");
  or_usual("kv_heads", heads);
  or_usual("head_size", width / heads);
  or_usual("hidden", (width + 2) / 3 * 8);
  of.set("base", given.number("base", 10000));
  of.set("eps", given.number("eps", 1e-5));
  return of;
}

nlohmann::ordered_json llama_config(const Attrs& given) {
  const Attrs of = llama_settled(given);
  return {{"max_position_embeddings", given.integer("context")},
          {"hidden_size", of.integer("width")},
          {"intermediate_size", of.integer("hidden")},
          {"num_hidden_layers", of.integer("layers")},
          {"num_attention_heads", of.integer("heads")},
          {"num_key_value_heads", of.integer("kv_heads")},
          {"head_dim", of.integer("head_size")},
          {"hidden_act", "silu"},
          {"rms_norm_eps", of.number("eps")},
          {"rope_theta", of.number("base")},
          {"rope_parameters", {{"rope_theta", of.number("base")}, {"rope_type", "default"}}},
          {"attention_bias", of.integer("attention_bias") != 0},
          {"mlp_bias", of.integer("mlp_bias") != 0}};
}

std::vector<HfTensor> llama_tensors(const Attrs& of) {
  const int64_t width = of.integer("width"), vocab = of.integer("vocab"), hidden = of.integer("hidden");
  const bool mlp_bias = of.integer("mlp_bias") != 0;
  std::vector<HfTensor> all;
  all.push_back(hf_whole("model.embed_tokens.weight", "embed.token.weight", {vocab, width}));
  for (int64_t i = 0; i < of.integer("layers"); ++i) {
    const std::string theirs = fmt::format("model.layers.{}.", i), ours = fmt::format("block{}.", i);
    const auto linear = [&](const char* their, const char* our, int64_t in, int64_t out, bool bias) {
      all.push_back(hf_turned(theirs + their + ".weight", ours + our + ".weight", in, out));
      if (bias) all.push_back(hf_whole(theirs + their + ".bias", ours + our + ".bias", {out}));
    };
    all.push_back(hf_whole(theirs + "input_layernorm.weight", ours + "ln1.weight", {width}));
    hf_attention(of, theirs, ours, all);
    all.push_back(hf_whole(theirs + "post_attention_layernorm.weight", ours + "ln2.weight", {width}));
    linear("mlp.gate_proj", "gate", width, hidden, mlp_bias);
    linear("mlp.up_proj", "up", width, hidden, mlp_bias);
    linear("mlp.down_proj", "down", hidden, width, mlp_bias);
  }
  all.push_back(hf_whole("model.norm.weight", "head.ln.weight", {width}));
  if (of.integer("tied") == 0) all.push_back(hf_turned("lm_head.weight", "head.logits.weight", width, vocab));
  return all;
}

}  // namespace

HfArchitecture hf_llama() {
  return {"LlamaForCausalLM",      "llama", "llama", "model.", llama_model, llama_config, llama_tensors, llama_settled,
          {".rotary_emb.inv_freq"}};
}

}  // namespace prun::checkpoint
