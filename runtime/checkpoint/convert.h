// Weights into files of another layout: a Hugging Face folder, a checkpoint of as many ranks as one likes. Everything
// streams: what is held at a time is a few windows of some MiB, whatever the size of the model.
#pragma once
#include <functional>
#include <string>

#include "checkpoint/index.h"
#include "checkpoint/weights.h"

namespace prun::checkpoint {

using Advance = std::function<void(int64_t bytes, int64_t of)>;

// Makes `out`, which must not exist or be empty, whole or not at all. Files are at most `file_bytes` large, unless one
// tensor is larger. Throws checkpoint_invalid where the model is none of Hugging Face's, checkpoint_write.
void export_hf(const Weights& weights, const std::string& out, int64_t file_bytes, const Advance& advance);

// A checkpoint in the folder `out` of checkpoints: `index` says all but the tensors and how many ranks share them.
// `dtype` "": as it is stored. Throws checkpoint_write.
void write_checkpoint(const Weights& weights, Index index, const std::string& out, const std::string& dtype,
                      const Advance& advance);

}  // namespace prun::checkpoint
