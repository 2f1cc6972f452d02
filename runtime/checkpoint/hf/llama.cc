// LlamaForCausalLM (transformers/models/llama/modeling_llama.py), which is prun.models.llama.
//
// Surprising fact: both turn the pairs (i, i + size / 2) of a head, so that rows of q and k stay in their order (Meta's
// own files turn neighbours; transformers permuted them when it took them over).
#include <nlohmann/json.hpp>

#include "checkpoint/hf/architecture.h"
#include "checkpoint/hf/llama_parts.h"

namespace prun::checkpoint {
namespace {

constexpr double kLlamaBase = 10000;

ModelDescription llama_model(const nlohmann::ordered_json& config) {
  ModelDescription model{"llama", {}};
  hf_read_llama_parts(config, {0, 2048, kLlamaBase, 1e-6}, model);
  for (const char* name : {"attention_bias", "mlp_bias"})
    model.arguments.set(name, int64_t{hf_flag(config, name, false)});
  return model;
}

Attrs llama_settled(const Attrs& given) {
  Attrs of = hf_settle_llama_parts(given, kLlamaBase, (given.integer("width") + 2) / 3 * 8);
  for (const char* name : {"attention_bias", "mlp_bias"}) of.set(name, given.integer(name));
  return of;
}

nlohmann::ordered_json llama_config(const Attrs& given) {
  const Attrs of = llama_settled(given);
  nlohmann::ordered_json config = hf_llama_parts_config(of, given.integer("context"));
  for (const char* name : {"attention_bias", "mlp_bias"}) config[name] = of.integer(name) != 0;
  return config;
}

std::vector<HfTensor> llama_tensors(const Attrs& of) {
  const int64_t width = of.integer("width"), hidden = of.integer("hidden");
  return hf_llama_parts_tensors(
      of, [&](const std::string& theirs, const std::string& ours, std::vector<HfTensor>& all) {
        const auto linear = [&](const char* their, const char* our, int64_t in, int64_t out) {
          all.push_back(hf_turned(theirs + their + ".weight", ours + our + ".weight", in, out));
          if (of.integer("mlp_bias") != 0)
            all.push_back(hf_whole(theirs + their + ".bias", ours + our + ".bias", {out}));
        };
        linear("mlp.gate_proj", "gate", width, hidden);
        linear("mlp.up_proj", "up", width, hidden);
        linear("mlp.down_proj", "down", hidden, width);
      });
}

}  // namespace

HfArchitecture hf_llama() {
  return {"LlamaForCausalLM",      "llama", "llama", "model.", llama_model, llama_config, llama_tensors, llama_settled,
          {".rotary_emb.inv_freq"}};
}

}  // namespace prun::checkpoint
