// MixtralForCausalLM (transformers/models/mixtral/modeling_mixtral.py), which is prun.models.mixtral.
//
// Surprising fact: in the files each expert has matrices of its own, w1 (gate), w2 (down) and w3 (up), [out, in]; ours
// are one tensor [experts, in, out] a kind.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/hf/architecture.h"
#include "checkpoint/hf/llama_parts.h"

namespace prun::checkpoint {
namespace {

constexpr double kMixtralBase = 1e6;

ModelDescription mixtral_model(const nlohmann::ordered_json& config) {
  ModelDescription model{"mixtral", {}};
  hf_read_llama_parts(config, {8, int64_t{4096} * 32, kMixtralBase, 1e-5}, model);
  model.arguments.set("experts", hf_integer(config, "num_local_experts", 8));
  model.arguments.set("choices", hf_integer(config, "num_experts_per_tok", 2));
  // A window as long as the positions hides nothing.
  if (const int64_t window = hf_integer(config, "sliding_window", 0);
      window > 0 && window < model.arguments.integer("context"))
    throw usage_error(fmt::format("its attention sees {} tokens (sliding_window), prun's all", window));
  return model;
}

Attrs mixtral_settled(const Attrs& given) {
  Attrs of = hf_settle_llama_parts(given, kMixtralBase, (given.integer("width") * 7 + 15) / 16 * 8);
  for (const char* name : {"experts", "choices"}) of.set(name, given.integer(name));
  return of;
}

nlohmann::ordered_json mixtral_config(const Attrs& given) {
  const Attrs of = mixtral_settled(given);
  nlohmann::ordered_json config = hf_llama_parts_config(of, given.integer("context"));
  config.update({{"sliding_window", nullptr},
                 {"num_local_experts", of.integer("experts")},
                 {"num_experts_per_tok", of.integer("choices")},
                 {"router_aux_loss_coef", given.number("aux", 0.001)}});
  return config;
}

std::vector<HfTensor> mixtral_tensors(const Attrs& of) {
  const int64_t width = of.integer("width"), hidden = of.integer("hidden"), experts = of.integer("experts");
  return hf_llama_parts_tensors(
      of, [&](const std::string& theirs, const std::string& ours, std::vector<HfTensor>& all) {
        const std::string moe = theirs + "block_sparse_moe.";
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
      });
}

}  // namespace

HfArchitecture hf_mixtral() {
  return {"MixtralForCausalLM",    "mixtral",      "mixtral",       "model.",
          mixtral_model,           mixtral_config, mixtral_tensors, mixtral_settled,
          {".rotary_emb.inv_freq"}};
}

}  // namespace prun::checkpoint
