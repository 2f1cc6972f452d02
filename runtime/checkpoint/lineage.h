// The origin of a checkpoint: the run that wrote it, its branch, and its parent.
//
// Surprising fact: a parent is identified by the SHA-256 of its index.json, which holds the hashes of all its data, so
// checkpoints of an earlier prun have an identity, too.
#pragma once
#include <cstdint>
#include <string>

#include "base/named_field.h"

namespace prun::checkpoint {

struct ParentCheckpoint {
  std::string checkpoint;  // its name in the same folder, or a path from that folder; "" = no parent
  std::string run;         // "" = unknown
  int64_t step = 0;
  std::string id;  // Index::id
  bool operator==(const ParentCheckpoint&) const = default;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("checkpoint", checkpoint), optional_field("run", run), field("step", step), field("id", id));
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
    fields(optional_field("run", run), optional_field("branch", branch), optional_field("parent", parent));
  }
};

}  // namespace prun::checkpoint
