// Writes the files of a checkpoint: several at a time, each filled and hashed by a thread of its own.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"

namespace prun::checkpoint {

struct FileToWrite {
  std::string name;  // within the checkpoint's folder
  std::vector<PieceToWrite> pieces;
};

// Splits a file into at most `parts` files of about equal length, unless it is short. The caller sets their names.
std::vector<FileToWrite> divided(FileToWrite file, int parts);

// Writes the files into the folder, `threads` at a time, syncs them, and adds each piece to `tensors`. It sets dtype
// and pieces of a tensor; the caller sets its other fields. Throws the first error.
void write_files(const std::string& folder, const std::vector<FileToWrite>& files, int threads,
                 const std::function<bool()>& cancelled, std::map<std::string, SavedTensor>& tensors);

// Writes a checkpoint of these weights into `out`, a folder of checkpoints. `index` holds everything except the
// tensors, including the lineage and the number of ranks that share the tensors. `dtype` "" = the stored dtype. Throws
// checkpoint_write. Memory: a few windows of some MiB.
void write_checkpoint(const Weights& weights, Index index, const std::string& out, const std::string& dtype,
                      const Advance& advance);

}  // namespace prun::checkpoint
