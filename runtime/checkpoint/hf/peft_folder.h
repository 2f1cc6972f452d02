// Folders that peft saves, as weights to begin with: adapter_config.json and adapter_model.safetensors.
//
// Surprising fact: peft names layers of the base's architecture, of which several can be one of ours (q, k, v).
// Adapters of such layers fit only if they have one A, as those of prun's own exports do.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "ir/adapters.h"

namespace prun::checkpoint {

bool is_peft_folder(const std::string& path);  // has an adapter_config.json

struct PeftWeights {
  Weights weights;                   // the base's, and the tensors of adapters under prun's names
  Adapters adapters;                 // rank, alpha, dropout and the folder of the base
  std::vector<std::string> trained;  // parameters of the base that the folder replaces (modules_to_save)
};

// Opens adapters with their base. `base`: its folder; "" = the one that the configuration names. Throws
// checkpoint_invalid for adapters that prun's layers cannot express, and for a base that is missing.
PeftWeights open_peft_folder(const std::string& folder, const std::string& base = "");

}  // namespace prun::checkpoint
