// Adapters in the form of Hugging Face's peft: lora_A [rank, in] and lora_B [out, rank] under the names of their
// layers.
//
// Surprising fact: layers of theirs that are parts of one of ours (q, k, v) get copies of its A and parts of its B.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/hf/tensors.h"
#include "checkpoint/weights.h"
#include "ir/adapters.h"

namespace prun::checkpoint {

struct PeftAdapters {
  std::vector<HfTensor> tensors;
  std::vector<std::string> modules;  // target_modules: ends of names, or whole names
  std::vector<std::string> saved;    // modules_to_save: modules that are trained in full
  bool fan_in_fan_out = false;       // weights of theirs are [in, out], those of GPT-2's Conv1D
};

// `trained`: our parameters that are trained in full; `theirs`: all tensors of the base. Throws checkpoint_invalid
// (folder.h, export_peft).
PeftAdapters peft_adapters(const Weights& weights, const std::set<std::string>& trained,
                           const std::vector<HfTensor>& theirs);
nlohmann::ordered_json peft_config(const PeftAdapters& peft, const Adapters& adapters);

}  // namespace prun::checkpoint
