// Commits in the host's memory (replicate = 1 in prun.checkpoint): what a rank held outlives the rank, so a restart
// reads no disk.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/kept_commits.h"
#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct JobSpec;

inline constexpr std::string_view kReplicaFolder = "prun-replicas-";  // in /dev/shm, and then the launcher's pid

// The plan asks for them, and the run may begin again.
bool keeps_replicas(const JobSpec& spec, const Plan& plan);

// A folder in /dev/shm, of this user alone; removed with this. What a launcher that was killed leaves there, `prun
// clean` removes. In a job of several nodes each has one, with the parts of its own ranks and of those of the node
// before it.
class ReplicaFolder {
 public:
  explicit ReplicaFolder(JobSpec& spec);
  ~ReplicaFolder();
  ReplicaFolder(const ReplicaFolder&) = delete;
  ReplicaFolder& operator=(const ReplicaFolder&) = delete;
  // Tells the checkpoints' settings that there are commits to memory, returns a line for the user. Throws plan errors:
  // the state does not fit there twice, as it must while a commit replaces the one before.
  std::string settle(JobSpec& spec, const Plan& plan, const Job& job);
  std::vector<checkpoint::KeptCommit> commits() const;  // of a node of several: what it has, for newest_kept

 private:
  const std::string path_;
  bool settled_ = false;
};

// Of the nodes' inventories: the newest commit that is whole. Its name is in their folders; nothing: there is none.
std::optional<checkpoint::KeptCommit> newest_kept(const std::vector<std::string>& inventories);

}  // namespace prun
