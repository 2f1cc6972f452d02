// Commits in the host's memory (replicate = 1 in prun.checkpoint), which outlive a rank, so that a restart reads no
// disk.
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

inline constexpr std::string_view kReplicaFolder = "prun-replicas-";  // in /dev/shm, followed by the launcher's pid

// Returns whether the plan requests them and the run may begin again.
bool keeps_replicas(const JobSpec& spec, const Plan& plan);

// A folder in /dev/shm with mode 0700, removed by the destructor; `prun clean` removes folders of killed launchers. In
// a job of several nodes each node has one, with the parts of its own ranks and of the previous node's.
class ReplicaFolder {
 public:
  explicit ReplicaFolder(JobSpec& spec);
  ~ReplicaFolder();
  ReplicaFolder(const ReplicaFolder&) = delete;
  ReplicaFolder& operator=(const ReplicaFolder&) = delete;
  // Enables commits to memory in the checkpoint settings and returns a line for the user. Throws a plan error if the
  // state does not fit twice, as required while a commit replaces the previous one.
  std::string settle(JobSpec& spec, const Plan& plan, const Job& job);
  std::vector<checkpoint::KeptCommit> commits() const;  // with several nodes: this node's commits, for newest_kept

 private:
  const std::string path_;
  bool settled_ = false;
};

// Returns the newest commit that the nodes' inventories cover completely; its name is the same in all folders. nullopt:
// none.
std::optional<checkpoint::KeptCommit> newest_kept(const std::vector<std::string>& inventories);

}  // namespace prun
