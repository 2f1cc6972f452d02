// Several safetensors files of one checkpoint at a time, each filled and summed by a thread of its own.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"

namespace prun::checkpoint {

struct FileToWrite {
  std::string name;  // within the checkpoint's folder
  std::vector<PieceToWrite> pieces;
};

// Splits it into at most `parts` files that are about as long, unless it is short. Their names are left to the caller.
std::vector<FileToWrite> divided(FileToWrite file, int parts);

// Writes the files into the folder, `threads` at a time, waits for the disk, and says in `tensors` where each piece is;
// a tensor's dtype and pieces are set, the rest is the caller's. Throws what the first that failed throws.
void write_files(const std::string& folder, const std::vector<FileToWrite>& files, int threads,
                 const std::function<bool()>& cancelled, std::map<std::string, SavedTensor>& tensors);

}  // namespace prun::checkpoint
