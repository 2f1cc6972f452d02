// Where a checkpoint comes from: the run that wrote it, its branch, the checkpoint before it. index.json, run.json,
// `prun ckpt --json` and the notes between nodes have it under the same keys.
//
// Surprising fact: a parent is identified by the SHA-256 of its index.json, which holds the hashes of all its data, so
// checkpoints of an earlier prun have an identity, too.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace prun::checkpoint {

struct ParentCheckpoint {
  std::string checkpoint;  // its name in the same folder, or a path from that folder; "": there is none
  std::string run;         // "": it is not known
  int64_t step = 0;
  std::string id;  // Index::id

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(checkpoint, run, step, id);
  }
};

struct Lineage {
  std::string run;     // "": it is not known, as of all that an earlier prun wrote
  int64_t branch = 0;  // from 1 in each folder; 0: it is not known
  ParentCheckpoint parent;

  bool known() const { return branch > 0; }
  bool has_parent() const { return !parent.checkpoint.empty(); }

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(run, branch, parent);
  }
};

// The keys run, branch and parent; null: not known, or no parent.
nlohmann::ordered_json lineage_json(const Lineage& lineage);
// From an object that may lack them. Throws the errors of Json for keys of other types.
Lineage read_lineage(const nlohmann::ordered_json& json);

}  // namespace prun::checkpoint
