#include "job/replicas.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "ir/state.h"
#include "job/inventory.h"
#include "job/job_spec.h"

namespace prun {
namespace {

constexpr const char* kMemory = "/dev/shm";

int64_t state_bytes(const Job& job, int first, int end) {
  int64_t bytes = 0;
  for (int rank = first; rank < end; ++rank) {
    const Program& program = job.program(rank);
    for (const StateTensor& state : program.state)
      for (const Box& box : saved_boxes(program, state, rank))
        bytes += element_count(box.shape) * dtype_bytes(program.tensors[state.tensor].dtype);
  }
  return bytes;
}

}  // namespace

bool keeps_replicas(const JobSpec& spec, const Plan& plan) {
  const bool restarts = spec.restart.most > 0 || spec.restart.min_ranks > 0;
  return plan.keeping && plan.keeping->replicate > 0 && (spec.purpose != Purpose::train || restarts);
}

ReplicaFolder::ReplicaFolder(JobSpec& spec) : path_(fmt::format("{}/{}{}", kMemory, kReplicaFolder, getpid())) {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);  // from a killed launcher with this pid
  spec.checkpoint.memory_here = path_;
}

ReplicaFolder::~ReplicaFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ReplicaFolder::settle(JobSpec& spec, const Plan& plan, const Job& job) {
  if (std::exchange(settled_, true)) return "";  // settled by a previous attempt
  const bool shared = spec.launch.nnodes == 1;
  // A node holds about as much for another node's ranks as for its own.
  const int ranks = static_cast<int>(std::ssize(job.class_of_rank));
  const int64_t bytes =
      shared ? state_bytes(job, 0, ranks) : 2 * state_bytes(job, 0, std::min(ranks, spec.launch.nproc));
  if (const int64_t room = std::max<int64_t>(0, checkpoint::free_bytes(kMemory)); 2 * bytes > room)
    throw plan_error(
        fmt::format("replicate = 1 needs twice {} in {}, where {} are free: leave it, or mount that larger",
                    human_bytes(bytes), kMemory, human_bytes(room)),
        plan.keeping->site);
  if (mkdir(path_.c_str(), 0700) != 0)
    throw usage_error(fmt::format("cannot make {}: {}", path_, std::strerror(errno)));
  spec.checkpoint.memory = path_;
  return fmt::format("commits to memory: {} in {}{}\n", human_bytes(bytes), kMemory,
                     shared ? "" : ", with copies of another node's");
}

std::vector<checkpoint::KeptCommit> ReplicaFolder::commits() const { return checkpoint::kept_commits(path_); }

std::optional<checkpoint::KeptCommit> newest_kept(const std::vector<std::string>& inventories) {
  std::vector<std::vector<checkpoint::KeptCommit>> hosts;
  for (const std::string& each : inventories)
    if (!each.empty()) hosts.push_back(unpack<Inventory>(each).commits);
  return checkpoint::newest_whole(hosts);
}

}  // namespace prun
