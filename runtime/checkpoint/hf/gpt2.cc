// GPT2LMHeadModel (transformers/models/gpt2/modeling_gpt2.py) is prun.models.gpt.
//
// Surprising fact: its layers are Conv1D, whose weights are [in, out] and whose q, k, v are concatenated, both as in
// prun. Only an untied head is transposed.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/hf/architecture.h"

namespace prun::checkpoint {
namespace {

constexpr HfMember kMembers[] = {{"vocab", "vocab_size"}, {"layers", "n_layer"},      {"width", "n_embd"},
                                 {"heads", "n_head"},     {"context", "n_positions"}, {"hidden", "n_inner", 0}};

ModelDescription gpt_model(const nlohmann::ordered_json& config) {
  const std::string activation = hf_text(config, "activation_function", "gelu_new");
  const bool tanh = activation == "gelu_new" || activation == "gelu_pytorch_tanh";
  if (!tanh && activation != "gelu")
    throw usage_error(fmt::format("the activation {} is none that prun.models.gpt has: gelu_new, gelu", activation));
  if (hf_flag(config, "scale_attn_by_inverse_layer_idx", false) || !hf_flag(config, "scale_attn_weights", true))
    throw usage_error("prun.models.gpt scales attention by 1 / sqrt(head size), the same in all layers");
  if (hf_flag(config, "add_cross_attention", false)) throw usage_error("prun.models.gpt has no cross attention");
  ModelDescription model{"gpt", {}};
  Attrs& to = model.arguments;
  hf_read(config, kMembers, to);
  to.set("eps", hf_number(config, "layer_norm_epsilon", 1e-5));
  to.set("gelu", tanh ? "tanh" : "none");
  to.set("tied", int64_t{hf_flag(config, "tie_word_embeddings", true)});
  return model;
}

Attrs gpt_settled(const Attrs& given) {
  Attrs of;
  for (const char* name : {"vocab", "layers", "width", "heads"}) of.set(name, given.integer(name));
  of.set("hidden", given.integer("hidden") > 0 ? given.integer("hidden") : 4 * given.integer("width"));
  of.set("positions", given.integer("positions") > 0 ? given.integer("positions") : given.integer("context"));
  of.set("eps", given.number("eps", 1e-5));
  of.set("gelu", given.text("gelu", "tanh"));
  of.set("tied", given.integer("tied"));
  return of;
}

nlohmann::ordered_json gpt_config(const Attrs& given) {
  Attrs of = gpt_settled(given);
  of.set("context", of.integer("positions"));
  nlohmann::ordered_json config = hf_written(of, kMembers);
  config.update({{"n_ctx", of.integer("positions")},
                 {"activation_function", of.text("gelu") == "tanh" ? "gelu_new" : "gelu"},
                 {"layer_norm_epsilon", of.number("eps")},
                 {"resid_pdrop", 0.0},
                 {"embd_pdrop", 0.0},
                 {"attn_pdrop", 0.0}});
  return config;
}

std::vector<HfTensor> gpt_tensors(const Attrs& of) {
  const int64_t width = of.integer("width"), hidden = of.integer("hidden"), vocab = of.integer("vocab");
  std::vector<HfTensor> all;
  all.push_back(hf_whole("transformer.wte.weight", "embed.token.weight", {vocab, width}));
  all.push_back(hf_whole("transformer.wpe.weight", "embed.position.weight", {of.integer("positions"), width}));
  const auto norm = [&](const std::string& theirs, const std::string& ours) {
    all.push_back(hf_whole(theirs + ".weight", ours + ".weight", {width}));
    all.push_back(hf_whole(theirs + ".bias", ours + ".bias", {width}));
  };
  for (int64_t i = 0; i < of.integer("layers"); ++i) {
    const std::string theirs = fmt::format("transformer.h.{}.", i), ours = fmt::format("block{}.", i);
    const auto linear = [&](const char* their, const char* our, int64_t in, int64_t out) {
      all.push_back(hf_whole(theirs + their + ".weight", ours + our + ".weight", {in, out}));
      all.push_back(hf_whole(theirs + their + ".bias", ours + our + ".bias", {out}));
    };
    norm(theirs + "ln_1", ours + "ln1");
    linear("attn.c_attn", "qkv", width, 3 * width);
    linear("attn.c_proj", "proj", width, width);
    norm(theirs + "ln_2", ours + "ln2");
    linear("mlp.c_fc", "up", width, hidden);
    linear("mlp.c_proj", "down", hidden, width);
  }
  norm("transformer.ln_f", "head.ln");
  if (of.integer("tied") == 0) all.push_back(hf_transposed("lm_head.weight", "head.logits.weight", width, vocab));
  return all;
}

}  // namespace

HfArchitecture hf_gpt2() {
  return {"GPT2LMHeadModel", "gpt2",      "gpt",
          "transformer.",    gpt_model,   gpt_config,
          gpt_tensors,       gpt_settled, {".attn.bias", ".attn.masked_bias"}};
}

}  // namespace prun::checkpoint
