// Who may write to --checkpoint DIR: one job at a time, and of the runs only the one that the folder belongs to and
// those that continue it.
#pragma once
#include <memory>
#include <string>

#include "ir/plan.h"

namespace prun {

struct Options;
class OwnerFile;

// Locks a folder of checkpoints for one job: another job that would write there is refused until the lock is released.
// A job takes it before it reads the folder, so that the later of two jobs that start together finds the earlier one.
class CheckpointLock {
 public:
  explicit CheckpointLock(const std::string& folder);  // makes the folder; throws usage_error; "": locks nothing
  ~CheckpointLock();
  CheckpointLock(const CheckpointLock&) = delete;
  CheckpointLock& operator=(const CheckpointLock&) = delete;

 private:
  int fd_ = -1;
  std::unique_ptr<OwnerFile> file_;  // where the file system has no locks
};

// After settle_checkpoints. Throws usage_error where the folder belongs to another run, unless --overwrite replaces it.
void require_owner(Options& options);
// Removes what --overwrite replaces. Throws usage_error where the plan begins with weights from there.
void remove_replaced(Options& options, const Plan& plan);
// What the checkpoints of this attempt are recorded to come from; of node 0. `run`: RunFolder::id.
void settle_lineage(Options& options, const std::string& run, const Plan& plan);

}  // namespace prun
