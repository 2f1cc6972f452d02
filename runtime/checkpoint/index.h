// index.json of a checkpoint: what it holds, at which step, and where each piece of each tensor is.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/data_identity.h"
#include "checkpoint/lineage.h"
#include "ir/left_out.h"
#include "ir/model_description.h"
#include "ir/types.h"

namespace prun::checkpoint {

inline constexpr const char* kOptimizerPrefix = "optimizer.";  // names of its state begin so
inline constexpr int kFormat = 2;                              // raised if an earlier reader would misread a file

// A box of a logical tensor, in one file under the tensor's name.
struct SavedPiece {
  std::string file;  // relative to the checkpoint's folder
  Shape offset, shape;
  std::string sha256;  // of its data
};

struct SavedTensor {
  std::string dtype;  // as safetensors has it
  Shape shape;
  std::vector<SavedPiece> pieces;
  // Axes whose ranks have trained values of their own, all of which are here: the first dim counts them.
  std::string drift;
};

// What was read, and how far.
struct DataCursor {
  std::string kind, path;  // "": no file
  int64_t file_bytes = 0;
  int64_t samples = 0;  // samples of these data that steps consumed, over all ranks; the next step continues after them
  int64_t tokens = -1;  // tokens that all steps consumed; -1 = unknown
  DataIdentity identity;
};

struct Index {
  std::string id;  // SHA-256 of the file that was read; never written
  Lineage lineage;
  int64_t step = 0;   // steps that were done
  int64_t steps = 0;  // that the run was to do
  uint64_t seed = 0;  // of all random numbers, with the step
  int64_t ranks = 0;
  std::string mesh;     // "dp=2 tp=4"
  std::string plan;     // as typed
  std::string program;  // SHA-256 of the job
  DataCursor data;
  int64_t skipped = 0;     // steps that updated nothing, as their gradients were not finite
  LeftOut left_out;        // samples that all steps skip
  std::string rate;        // LearningRate::text
  std::string kernels;     // Device::numerics of rank 0: others give the same to rounding
  std::string choice;      // Job::kernels; "": the device has none, or it is a checkpoint of before
  int64_t arithmetic = 0;  // the version of those kernels (cpu::kArithmetic)
  // By what collectives took their algorithms (WorldOptions::algorithm_costs); nothing in a checkpoint of before.
  std::optional<std::string> algorithms;
  ModelDescription model;  // its name is "" where the plan had a model of its own
  std::map<std::string, SavedTensor> tensors;
};

// Throws checkpoint_invalid for a file that is missing or damaged, and for a format of a newer prun.
Index read_index(const std::string& folder);
std::string index_text(const Index& index);
std::string index_id(const std::string& text);  // Index::id of an index.json with this text

// A rank's part of the index, as it writes it beside its files.
std::string manifest_text(const std::map<std::string, SavedTensor>& tensors);
std::map<std::string, SavedTensor> parse_manifest(const std::string& text, const std::string& path);
void add_manifest(Index& index, const std::map<std::string, SavedTensor>& tensors);

}  // namespace prun::checkpoint
