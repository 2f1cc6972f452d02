// A folder as Hugging Face's transformers saves models in: config.json, and safetensors files with or without an index.
#pragma once
#include <string>

#include "checkpoint/weights.h"

namespace prun::checkpoint {

bool is_hf_folder(const std::string& path);  // has a config.json
// The model's arguments and its weights under prun's names; f32, f16 and bf16 files. Throws checkpoint_invalid for an
// architecture that prun has not (with those that it has), for tensors that are missing or of another shape.
Weights open_hf_folder(const std::string& path);

}  // namespace prun::checkpoint
