// A folder as torch.distributed.checkpoint's HuggingFaceStorageWriter leaves it: safetensors files with
// DCP_SHARDING_INFO, without config.json or index. Names are prun's.
#pragma once
#include <string>

#include "checkpoint/weights.h"

namespace prun::checkpoint {

bool is_sharded_folder(const std::string& path);
// Throws checkpoint_invalid where a file says no places, or pieces leave holes.
Weights open_sharded_folder(const std::string& path);

}  // namespace prun::checkpoint
