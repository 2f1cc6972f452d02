// The checkpoints of a folder as a tree: their names, their branches, the newest one, and which one comes before
// another. The order never depends on a clock.
//
//   step_00000002 ← step_00000004 ← step_00000006 ← step_00000008         branch 1, left at step 4
//                         ↖ step_00000006-2 ← step_00000012-2             branch 2, which LATEST names
//
// The checkpoints of a branch are a chain of growing steps, so a name says where its checkpoint belongs, even if the
// index cannot be read.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/index.h"

namespace prun::checkpoint {

struct CheckpointName {
  int64_t step = 0;
  int64_t branch = 1;
};

std::string checkpoint_name(int64_t step, int64_t branch);                   // step_00000010, step_00000010-2
std::optional<CheckpointName> parse_checkpoint_name(std::string_view name);  // nothing: it is another file's name

// The folder has checkpoints, whole or not, or once had some.
bool is_used(const std::string& folder);
// Folders of whole checkpoints in `folder` of all branches, by step, the last first.
std::vector<std::string> whole_checkpoints(const std::string& folder);
// Names of all checkpoints in `folder`, also of those that have no index, by step, the last first.
std::vector<std::string> all_names(const std::string& folder);

struct Newest {
  std::string checkpoint;  // its folder
  std::string remark;      // how it was found where LATEST does not name it; "": LATEST does
};
// The head of the branch that LATEST names. Where LATEST, or the checkpoint that it names, is missing: the last of the
// branch that its name belongs to, or of the only branch. Throws checkpoint_invalid where there is none, or where it
// could be one of several.
Newest newest(const std::string& folder);
// The checkpoint that `path` means: itself, or the newest in a folder of them; prints a remark. Throws
// checkpoint_invalid.
std::string resolve(const std::string& path);
// The checkpoint that this one was trained on from: its parent, or the one before it in its branch where the parent is
// gone. Nothing: there is none.
std::optional<std::string> before(const std::string& checkpoint);
// The parent's folder; nothing: it has none, or it is gone, or another checkpoint has its name.
std::optional<std::string> parent_of(const std::string& folder, const Lineage& lineage);

// Returns whether a run that resumes from `checkpoint` may write to `folder`: the folder has a checkpoint of the same
// run or of a run that it continues.
bool continues(const std::string& folder, const std::string& checkpoint);
// Returns the lineage of the checkpoints that `run` will write to `folder`. It resumes from `from` ("": from none). A
// new branch begins if the branch of `from` has later checkpoints.
Lineage lineage_after(const std::string& folder, const std::string& run, const std::string& from);
// `checkpoint` is a folder in `folder`, however the two paths are spelled.
bool lies_directly_in(const std::string& checkpoint, const std::string& folder);
// The name of `checkpoint` in `folder`, under which it or a copy of it is stored there; "": it is not.
std::string name_in(const std::string& folder, const std::string& checkpoint, const std::string& id);

}  // namespace prun::checkpoint
