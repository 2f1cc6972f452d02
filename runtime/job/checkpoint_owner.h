// Decides which run may write to --checkpoint DIR: one job at a time, and only the owner of the folder or a run that
// continues it.
#pragma once
#include <memory>
#include <string>

#include "ir/plan.h"

namespace prun {

struct JobSpec;
class OwnerFile;

// Locks a folder of checkpoints for one job; a second job that would write there is rejected. A job takes the lock
// before it reads the folder, so that the later of two concurrent jobs detects the earlier one.
class CheckpointLock {
 public:
  explicit CheckpointLock(const std::string& folder);  // creates the folder; throws usage_error; "": locks nothing
  ~CheckpointLock();
  CheckpointLock(const CheckpointLock&) = delete;
  CheckpointLock& operator=(const CheckpointLock&) = delete;

 private:
  int fd_ = -1;
  std::unique_ptr<OwnerFile> file_;  // on file systems without locks
};

// Runs after settle_checkpoints. Throws usage_error if the folder belongs to another run and --overwrite is missing.
void require_owner(JobSpec& spec);
// Removes the checkpoints that --overwrite replaces. Throws usage_error if the plan's initial weights are stored there.
void remove_replaced(JobSpec& spec, const Plan& plan);
// Settles the lineage of this attempt's checkpoints, on node 0. `run`: RunFolder::id.
void settle_lineage(JobSpec& spec, const std::string& run, const Plan& plan);

}  // namespace prun
