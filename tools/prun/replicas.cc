#include "replicas.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "ir/state.h"
#include "options.h"

namespace prun {
namespace {

constexpr const char* kMemory = "/dev/shm";

int64_t state_bytes(const Job& job) {
  int64_t bytes = 0;
  for (int rank = 0; rank < std::ssize(job.class_of_rank); ++rank) {
    const Program& program = job.program(rank);
    for (const StateTensor& state : program.state)
      for (const Box& box : saved_boxes(program, state, rank))
        bytes += element_count(box.shape) * dtype_bytes(program.tensors[state.tensor].dtype);
  }
  return bytes;
}

int64_t free_bytes() {
  struct statvfs space {};
  if (statvfs(kMemory, &space) != 0) return 0;
  return static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
}

}  // namespace

bool keeps_replicas(const Options& options, const Plan& plan) {
  const bool restarts = options.restart.most > 0 || options.restart.min_ranks > 0;
  return plan.keeping && plan.keeping->replicate > 0 && (options.command != "run" || restarts);
}

ReplicaFolder::~ReplicaFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

std::string ReplicaFolder::settle(Options& options, const Plan& plan, const Job& job) {
  if (!path_.empty()) return "";  // of an attempt before
  if (options.launch.nnodes > 1)
    throw plan_error(
        "replicate = 1 keeps commits in the memory of one host, and this job has several: a checkpoint folder that all "
        "of them see (--checkpoint DIR) is what it can begin again from",
        plan.keeping->site);
  const int64_t bytes = state_bytes(job), room = free_bytes();
  if (2 * bytes > room)
    throw plan_error(
        fmt::format("replicate = 1 needs twice {} in {}, where {} are free: leave it, or mount that larger",
                    human_bytes(bytes), kMemory, human_bytes(room)),
        plan.keeping->site);
  const std::string path = fmt::format("{}/{}{}", kMemory, kReplicaFolder, getpid());
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);  // of a launcher that was killed and had this pid
  if (mkdir(path.c_str(), 0700) != 0) throw usage_error(fmt::format("cannot make {}: {}", path, std::strerror(errno)));
  options.checkpoint.memory = path_ = path;
  return fmt::format("commits to memory: {} in {}\n", human_bytes(bytes), kMemory);
}

}  // namespace prun
