#include "job/checkpoint_owner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/history.h"
#include "job/job_spec.h"
#include "job/owner_file.h"

namespace prun {

namespace fs = std::filesystem;

CheckpointLock::CheckpointLock(const std::string& folder) {
  if (folder.empty()) return;
  if (fs::exists(folder + "/index.json"))
    throw usage_error(fmt::format(
        "{} is a checkpoint, and --checkpoint names a folder of checkpoints: name the one above it", folder));
  checkpoint::require_writable(folder);
  const std::string path = folder + "/.lock", taken = fmt::format("another run writes its checkpoints to {}", folder);
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw checkpoint::write_failed(path, errno);
  // Ranks are forks of the launcher and hold the lock too. Ranks of a killed launcher end within a second.
  for (auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);;) {
    if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    if (errno != EWOULDBLOCK && errno != EINTR) {  // a file system without locks
      close(std::exchange(fd_, -1));
      file_ = std::make_unique<OwnerFile>(folder + "/.owner", taken);
      return;
    }
    if (std::chrono::steady_clock::now() > until) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  close(fd_);
  throw usage_error(taken + ": give this one a folder of its own");
}

CheckpointLock::~CheckpointLock() {
  if (fd_ >= 0) close(fd_);
}

namespace {

// Returns "run 20261127-133200-zero3-ab12cd (zero3.lua, 5 checkpoints, the newest of step 10)".
std::string owner_text(const std::string& folder) {
  const size_t count = checkpoint::whole_checkpoints(folder).size();
  try {
    const checkpoint::Index index = checkpoint::read_index(checkpoint::newest(folder).checkpoint);
    return fmt::format("{} ({}, {}, the newest of step {})",
                       index.lineage.run.empty() ? "a run that it does not name" : "run " + index.lineage.run,
                       index.plan, counted(static_cast<int64_t>(count), "checkpoint"), index.position.step);
  } catch (const Error&) {  // damaged, or several branches
    return fmt::format("another run ({})", join(checkpoint::all_names(folder), ", "));
  }
}

std::string this_run_text(const JobSpec& spec) {
  std::string text = spec.plan;
  for (const auto& [name, value] : spec.settings) text += fmt::format(" --set {}={}", name, value);
  return text;
}

bool is_in(const std::string& path, const std::string& folder) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(path, error), above = fs::weakly_canonical(folder, error);
  return std::mismatch(above.begin(), above.end(), whole.begin(), whole.end()).first == above.end();
}

// Returns the newest checkpoint of this run on disk up to `step`: the parent of the next checkpoint after a restart
// from a commit in memory.
std::string disk_commit_until(const std::string& folder, const std::string& run, int64_t step) {
  try {
    if (!checkpoint::is_used(folder)) return "";
    std::optional<std::string> each = checkpoint::newest(folder).checkpoint;
    for (; each; each = checkpoint::before(*each)) {
      const checkpoint::Index index = checkpoint::read_index(*each);
      if (index.lineage.run != run) return "";
      if (index.position.step <= step) return *each;
    }
  } catch (const Error&) {  // damaged: the run continues without it
  }
  return "";
}

}  // namespace

void require_owner(JobSpec& spec) {
  CheckpointSettings& s = spec.checkpoint;
  if (s.folder.empty() || spec.launch.node_rank > 0 || !checkpoint::is_used(s.folder)) return;
  if (!s.resume.empty()) {
    const checkpoint::Index index = checkpoint::read_index(s.resume);
    if (!checkpoint::name_in(s.folder, s.resume, index.id).empty() || checkpoint::continues(s.folder, s.resume)) return;
  }
  if (s.overwrite) {
    s.replaces = true;
    return;
  }
  const std::string goes_on = s.resume.empty() ? "--resume auto goes on with that run" : "name another folder";
  const std::string instead = s.resume.empty() ? ", or name another folder" : "";
  throw usage_error(fmt::format("{} belongs to {}, and this run, {}, {}: {}, --overwrite removes its checkpoints{}",
                                s.folder, owner_text(s.folder), this_run_text(spec),
                                s.resume.empty() ? "would begin anew" : fmt::format("continues {}", s.resume), goes_on,
                                instead));
}

void remove_replaced(JobSpec& spec, const Plan& plan) {
  CheckpointSettings& s = spec.checkpoint;
  if (!std::exchange(s.replaces, false)) return;
  if (plan.initial_weights && is_in(plan.initial_weights->path, s.folder))
    throw Error(Exit::usage,
                fmt::format("the plan begins with the weights in {}, which --overwrite would remove from {}: name "
                            "another folder",
                            plan.initial_weights->path, s.folder),
                plan.initial_weights->site);
  fmt::print(stderr, "prun: --overwrite removes what {} has of {}\n", s.folder, owner_text(s.folder));
  std::error_code error;
  for (const char* name : {checkpoint::kBest, checkpoint::kLatest}) fs::remove(fs::path(s.folder) / name, error);
  for (const std::string& name : checkpoint::all_names(s.folder)) {
    const std::string path = s.folder + "/" + name;
    if (const std::error_code failed = checkpoint::remove_checkpoint(path))
      throw checkpoint::write_failed(path, failed.value());
  }
}

void settle_lineage(JobSpec& spec, const std::string& run, const Plan& plan) {
  CheckpointSettings& s = spec.checkpoint;
  if (s.lineage.run.empty()) s.origin = s.resume;
  s.lineage = {run, 1, {}};
  if (s.folder.empty()) return;
  const bool from_memory = !s.kept.empty() || (!s.memory.empty() && s.resume.starts_with(s.memory + "/"));
  std::string from = s.resume;
  if (from_memory) {
    from = disk_commit_until(s.folder, run, s.begin.step);
    if (from.empty()) from = s.origin;
  }
  s.lineage = checkpoint::lineage_after(s.folder, run, from);
  s.read = {s.lineage.parent.checkpoint};
  for (const std::string& path : {from, s.origin, plan.initial_weights ? plan.initial_weights->path : ""}) {
    if (path.empty() || !is_in(path, s.folder)) continue;
    try {
      s.read.insert(fs::path(checkpoint::resolve(path)).filename().string());
    } catch (const Error&) {  // not a checkpoint of prun
    }
  }
}

}  // namespace prun
