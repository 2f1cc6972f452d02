// index.json of a checkpoint: the run's position and numerics, and the location of each piece of each tensor.
//
// README.md, "The format", describes its keys. A new field is a member here with its line in each_field, which the
// reader, the writer and `prun ckpt --json` use.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/data_identity.h"
#include "checkpoint/lineage.h"
#include "ir/adapters.h"
#include "ir/model_description.h"
#include "ir/numerics.h"
#include "ir/run_position.h"
#include "ir/types.h"

namespace prun::checkpoint {

inline constexpr const char* kOptimizerPrefix = "optimizer.";  // name prefix of optimizer state
inline constexpr int kFormat = 3;                              // raised if an earlier reader would misread a file

// A box of a logical tensor, in one file under the tensor's name.
struct SavedPiece {
  std::string file;  // relative to the checkpoint's folder
  Shape offset, shape;
  std::string sha256;  // digest of its data
  bool operator==(const SavedPiece&) const = default;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("file", file), field("offset", offset), field("shape", shape), field("sha256", sha256));
  }
};

struct SavedTensor {
  std::string dtype;  // safetensors' name of the dtype
  Shape shape;
  std::vector<SavedPiece> pieces;
  // Axes whose ranks have trained values of their own; "" = none. All of them are stored: dim 0 counts them.
  std::string drift;
  bool linear = false;  // the weight [in, out] of a linear layer

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("dtype", dtype), field("shape", shape), field("pieces", pieces), optional_field("drift", drift),
           optional_field("linear_layer", linear));
  }
};

// The training data, by the plan's name and by content.
struct SavedData {
  std::string kind, path;  // path "" = no file
  int64_t file_bytes = 0;
  DataIdentity identity;
  bool operator==(const SavedData&) const = default;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("kind", kind), field("path", path), field("file_bytes", file_bytes),
           optional_field("identity", identity));
  }
};

// The metric that a run watches (Schedule::watched), as of the checkpoint.
struct Progress {
  std::string metric;      // "" = none is watched
  bool largest = false;    // the largest value is the best
  double value = 0;        // of the last evaluation
  int64_t step = -1;       // steps before that evaluation; -1 = none yet
  double best = 0;         // the best value so far
  int64_t best_step = -1;  // -1 = none was finite
  int64_t since = 0;       // evaluations since the best one
  bool ended = false;      // the run ended, because `since` reached its patience; not stored

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("metric", metric), field("largest", largest), field("value", value), field("step", step),
           field("best", best), field("best_step", best_step), field("since", since));
  }
  bool operator==(const Progress&) const = default;
};

struct Index {
  std::string id;  // SHA-256 of the file that was read; never written
  Lineage lineage;
  RunPosition position;
  int64_t steps = 0;  // steps of the whole run
  uint64_t seed = 0;  // seeds all random numbers, together with the step
  int64_t ranks = 0;
  std::string mesh;     // Mesh::text
  std::string plan;     // as typed
  std::string program;  // SHA-256 of the job
  std::string rate;     // LearningRate::text
  Numerics numerics;
  SavedData data;
  ModelDescription model;  // name "" = the plan defined a model of its own
  Adapters adapters;       // if they have a base, then `tensors` lacks its tensors
  Progress progress;       // metric "" = the run watches none
  std::map<std::string, SavedTensor> tensors;

  // Visits all fields except the tensors, which may be many.
  template <class Fields>
  void each_field(Fields&& fields) {
    lineage.each_field(fields);
    position.each_field(fields);
    fields(field("steps", steps), field("seed", seed), field("ranks", ranks), field("mesh", mesh), field("plan", plan),
           field("program", program), field("learning_rate", rate));
    numerics.each_field(fields);
    fields(field("data", data), field("model", model), optional_field("lora", adapters),
           optional_field("watched", progress));
  }
};

// Throws checkpoint_invalid for a file that is missing or damaged, and for the format of a newer prun.
Index read_index(const std::string& folder);
std::string index_text(const Index& index);
std::string index_id(const std::string& text);  // Index::id of an index.json with this text

// Serializes and parses a rank's part of the index, which the rank writes next to its files.
std::string manifest_text(const std::map<std::string, SavedTensor>& tensors);
std::map<std::string, SavedTensor> parse_manifest(const std::string& text, const std::string& path);
void add_manifest(Index& index, const std::map<std::string, SavedTensor>& tensors);

}  // namespace prun::checkpoint
