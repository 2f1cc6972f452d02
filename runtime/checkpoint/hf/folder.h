// Folders of Hugging Face's transformers: config.json, and safetensors files with or without an index.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "ir/adapters.h"

namespace prun::checkpoint {

bool is_hf_folder(const std::string& path);  // has a config.json
// Reads the model's arguments and its weights under prun's names from f64, f32, f16 and bf16 files. Throws
// checkpoint_invalid for an architecture that prun lacks, and for tensors that are missing or have another shape.
Weights open_hf_folder(const std::string& path);

bool is_described_folder(const std::string& path);  // has a prun.yaml, its own description
// Reads weights in PyTorch's layout and names, without a config.json, by the folder's own description.
Weights open_described_folder(const std::string& path);

struct HfExport {
  int64_t file_bytes = 0;                    // upper bound for a file, unless one tensor is larger
  std::optional<Dtype> dtype;                // nullopt = the stored dtype
  std::vector<int32_t> ends;                 // end-of-text tokens, for config.json
  std::map<std::string, std::string> files;  // name and content of the tokenizer's files
  std::string stem = "model";                // names of the files of weights
  std::string description;                   // an architecture, a file or a folder (description_named); "" = by model
};

// Creates the folder `out`, which must be missing or empty, whole or not at all. Throws checkpoint_invalid if the model
// has no Hugging Face form or `dtype` cannot hold a value, and checkpoint_write. Memory: a few windows of some MiB.
void export_hf(const Weights& weights, const std::string& out, const HfExport& how, const Advance& advance);
// Creates a folder of safetensors files in PyTorch's layout: weights of linear layers are [out, in]. The names are
// those of the description; without one they are prun's. Throws as export_hf does, and checkpoint_invalid if an older
// prun wrote a checkpoint of a plan's own model, which does not record these layers.
void export_torch(const Weights& weights, const std::string& out, const HfExport& how, const Advance& advance);

// Creates a folder that peft opens: adapters, their configuration, and modules that are trained in full. `weights`:
// with those of the base (open_with_base), from which names and shapes come. Throws as export_hf does, and
// checkpoint_invalid if a part of a module of theirs is trained in full, or if several adapted layers are one of
// theirs.
void export_peft(const Weights& weights, const Adapters& adapters, const std::string& out, const HfExport& how,
                 const Advance& advance);

}  // namespace prun::checkpoint
