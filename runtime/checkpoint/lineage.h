// The origin of a checkpoint: the run that wrote it, its branch, and its parent. index.json, run.json, `prun ckpt
// --json` and the notes between nodes use the same keys.
//
// Surprising fact: a parent is identified by the SHA-256 of its index.json, which holds the hashes of all its data, so
// checkpoints of an earlier prun have an identity, too.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace prun::checkpoint {

struct ParentCheckpoint {
  std::string checkpoint;  // its name in the same folder, or a path from that folder; "" = no parent
  std::string run;         // "" = unknown
  int64_t step = 0;
  std::string id;  // Index::id

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(checkpoint, run, step, id);
  }
};

struct Lineage {
  std::string run;     // "" = unknown: an earlier prun wrote it
  int64_t branch = 0;  // counts from 1 in each folder; 0 = unknown
  ParentCheckpoint parent;

  bool known() const { return branch > 0; }
  bool has_parent() const { return !parent.checkpoint.empty(); }

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(run, branch, parent);
  }
};

// Writes the keys run, branch and parent; null = unknown, or no parent.
nlohmann::ordered_json lineage_json(const Lineage& lineage);
// Reads an object that may lack these keys. Throws Json::exception for a value of another type.
Lineage read_lineage(const nlohmann::ordered_json& json);

}  // namespace prun::checkpoint
