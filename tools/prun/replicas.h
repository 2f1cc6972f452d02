// Commits in the host's memory (replicate = 1 in prun.checkpoint): what a rank held outlives the rank, so a restart
// reads no disk.
#pragma once
#include <string>
#include <string_view>

#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct Options;

inline constexpr std::string_view kReplicaFolder = "prun-replicas-";  // in /dev/shm, and then the launcher's pid

// The plan asks for them, and the run may begin again.
bool keeps_replicas(const Options& options, const Plan& plan);

// A folder in /dev/shm, of this user alone; removed with this. What a launcher that was killed leaves there, `prun
// clean` removes.
class ReplicaFolder {
 public:
  ReplicaFolder() = default;
  ~ReplicaFolder();
  ReplicaFolder(const ReplicaFolder&) = delete;
  ReplicaFolder& operator=(const ReplicaFolder&) = delete;
  // Makes the folder, tells it the checkpoints' settings, returns a line for the user. Throws plan errors: the job has
  // several nodes, or its state does not fit there twice, as it must while a commit replaces the one before.
  std::string settle(Options& options, const Plan& plan, const Job& job);

 private:
  std::string path_;
};

}  // namespace prun
