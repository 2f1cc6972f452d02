// Weights into files of another layout: a Hugging Face folder, a checkpoint of as many ranks as one likes. Everything
// streams: what is held at a time is a few windows of some MiB, whatever the size of the model.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/index.h"
#include "checkpoint/weights.h"

namespace prun::checkpoint {

using Advance = std::function<void(int64_t bytes, int64_t of)>;

struct HfExport {
  int64_t file_bytes = 0;                    // of a file at most, unless one tensor is larger
  std::optional<Dtype> dtype;                // none: as they are stored
  std::vector<int32_t> ends;                 // tokens that end a text, for config.json
  std::map<std::string, std::string> files;  // name and content of those of the tokenizer
};

// Makes `out`, which must not exist or be empty, whole or not at all. Throws checkpoint_invalid where the model is none
// of Hugging Face's or `dtype` cannot hold it, checkpoint_write.
void export_hf(const Weights& weights, const std::string& out, const HfExport& how, const Advance& advance);

// Writes a checkpoint into `out`, a folder of checkpoints. `index` holds everything except the tensors: also the
// lineage and the number of ranks that share the tensors. `dtype` "" keeps the stored dtype. Throws checkpoint_write.
void write_checkpoint(const Weights& weights, Index index, const std::string& out, const std::string& dtype,
                      const Advance& advance);

}  // namespace prun::checkpoint
