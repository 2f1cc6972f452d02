// The checkpoints of a folder as a tree: their names, their branches, the newest one, and the predecessor of each. The
// order never depends on a clock.
//
//   step_00000002 ← step_00000004 ← step_00000006 ← step_00000008         branch 1, left at step 4
//                         ↖ step_00000006-2 ← step_00000012-2             branch 2, which LATEST names
//
// The checkpoints of a branch are a chain of growing steps, so a name determines the position of its checkpoint, even
// if the index cannot be read.
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
std::optional<CheckpointName> parse_checkpoint_name(std::string_view name);  // nullopt: not a checkpoint's name

// Returns whether the folder has or had checkpoints, whole or not.
bool is_used(const std::string& folder);
// Returns the paths of the whole checkpoints of all branches, in descending order of steps.
std::vector<std::string> whole_checkpoints(const std::string& folder);
// Returns the names of all checkpoints in `folder`, including those without an index, in descending order of steps.
std::vector<std::string> all_names(const std::string& folder);

struct Newest {
  std::string checkpoint;  // its folder
  std::string remark;      // reports how it was found; "" = LATEST names it
};
// Returns the head of the branch that LATEST names. If the checkpoint that LATEST names is missing, returns the last
// earlier one of its branch. If LATEST is missing, returns the last checkpoint of the only branch. Throws
// checkpoint_invalid if there is no such checkpoint, or if several branches have one.
Newest newest(const std::string& folder);
// Returns `path` if it is a checkpoint, otherwise the newest checkpoint in that folder, and prints its remark. Throws
// checkpoint_invalid.
std::string resolve(const std::string& path);
// Returns the parent of this checkpoint, or the previous checkpoint of its branch if the parent is gone; nullopt if
// there is neither.
std::optional<std::string> before(const std::string& checkpoint);
// Returns the parent's folder; nullopt if there is no parent, if it is gone, or if another checkpoint has its name.
std::optional<std::string> parent_of(const std::string& folder, const Lineage& lineage);

// Returns whether a run that resumes from `checkpoint` may write to `folder`: the folder has a checkpoint of the same
// run or of a run that it continues.
bool continues(const std::string& folder, const std::string& checkpoint);
// Returns the lineage of the checkpoints that `run` will write to `folder`. It resumes from `from` ("": from none). A
// new branch begins if the branch of `from` has later checkpoints.
Lineage lineage_after(const std::string& folder, const std::string& run, const std::string& from);
// Returns whether `checkpoint` is located in `folder`, independent of the spelling of the two paths.
bool is_directly_in(const std::string& checkpoint, const std::string& folder);
// Returns the name under which `checkpoint` or a copy of it is stored in `folder`; "" if it is not stored there.
std::string name_in(const std::string& folder, const std::string& checkpoint, const std::string& id);

}  // namespace prun::checkpoint
