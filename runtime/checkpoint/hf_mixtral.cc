// MixtralForCausalLM (transformers/models/mixtral/modeling_mixtral.py), which is prun.models.mixtral.
//
// Surprising fact: in the files each expert has matrices of its own, w1 (gate), w2 (down) and w3 (up), [out, in]; ours
// are one tensor [experts, in, out] a kind.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/hf_architecture.h"
#include "checkpoint/hf_rotary.h"

namespace prun::checkpoint {
namespace {

ModelDescription mixtral_model(const nlohmann::ordered_json& config) {
  const std::string activation = hf_text(config, "hidden_act", "silu");
  if (activation != "silu")
    throw usage_error(fmt::format("prun.models.mixtral has silu in its experts, not {}", activation));
  ModelDescription model{"mixtral", {}};
  Attrs& to = model.arguments;
  to.set("vocab", hf_integer(config, "vocab_size"));
  to.set("layers", hf_integer(config, "num_hidden_layers"));
  to.set("width", hf_integer(config, "hidden_size"));
  to.set("heads", hf_integer(config, "num_attention_heads"));
  to.set("kv_heads", hf_integer(config, "num_key_value_heads", 8));
  to.set("head_size", hf_integer(config, "head_dim", 0));
  to.set("hidden", hf_integer(config, "intermediate_size"));
  to.set("experts", hf_integer(config, "num_local_experts", 8));
  to.set("choices", hf_integer(config, "num_experts_per_tok", 2));
  to.set("context", hf_integer(config, "max_position_embeddings", 4096 * 32));
  // A window as long as the positions hides nothing.
  if (const int64_t window = hf_integer(config, "sliding_window", 0);
      window > 0 && window < model.arguments.integer("context"))
    throw usage_error(fmt::format("its attention sees {} tokens (sliding_window), prun's all", window));
  to.set("base", hf_rope_theta(config, 1e6));
  to.set("eps", hf_number(config, "rms_norm_eps", 1e-5));
  to.set("tied", int64_t{hf_flag(config, "tie_word_embeddings", false)});
  return model;
}

Attrs mixtral_settled(const Attrs& given) {
  Attrs of;
  for (const char* name : {"vocab", "layers", "width", "heads", "experts", "choices", "tied"})
    of.set(name, given.integer(name));
  const auto or_usual = [&](const char* name, int64_t usual) {
    of.set(name, given.integer(name) > 0 ? given.integer(name) : usual);
  };
  const int64_t width = of.integer("width"), heads = of.integer("heads");
  or_usual("kv_heads", heads);
  or_usual("head_size", width / heads);
  or_usual("hidden", (width * 7 + 15) / 16 * 8);
  of.set("base", given.number("base", 1e6));
  of.set("eps", given.number("eps", 1e-5));
  return of;
}

nlohmann::ordered_json mixtral_config(const Attrs& given) {
  const Attrs of = mixtral_settled(given);
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
          {"sliding_window", nullptr},
          {"num_local_experts", of.integer("experts")},
          {"num_experts_per_tok", of.integer("choices")},
          {"router_aux_loss_coef", given.number("aux", 0.001)}};
}

std::vector<HfTensor> mixtral_tensors(const Attrs& of) {
  const int64_t width = of.integer("width"), vocab = of.integer("vocab"), hidden = of.integer("hidden"),
                experts = of.integer("experts");
  std::vector<HfTensor> all;
  all.push_back(hf_whole("model.embed_tokens.weight", "embed.token.weight", {vocab, width}));
  for (int64_t i = 0; i < of.integer("layers"); ++i) {
    const std::string theirs = fmt::format("model.layers.{}.", i), ours = fmt::format("block{}.", i),
                      moe = theirs + "block_sparse_moe.";
    all.push_back(hf_whole(theirs + "input_layernorm.weight", ours + "ln1.weight", {width}));
    hf_attention(of, theirs, ours, all);
    all.push_back(hf_whole(theirs + "post_attention_layernorm.weight", ours + "ln2.weight", {width}));
    all.push_back(hf_turned(moe + "gate.weight", ours + "moe.router.weight", width, experts));
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
  }
  all.push_back(hf_whole("model.norm.weight", "head.ln.weight", {width}));
  if (of.integer("tied") == 0) all.push_back(hf_turned("lm_head.weight", "head.logits.weight", width, vocab));
  return all;
}

}  // namespace

HfArchitecture hf_mixtral() {
  return {"MixtralForCausalLM",    "mixtral",      "mixtral",       "model.",
          mixtral_model,           mixtral_config, mixtral_tensors, mixtral_settled,
          {".rotary_emb.inv_freq"}};
}

}  // namespace prun::checkpoint
