#include "checkpoints.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/reader.h"

namespace prun {

CheckpointLock::CheckpointLock(const std::string& folder) {
  if (folder.empty()) return;
  const std::string path = folder + "/.lock";
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw checkpoint::write_failed(path, errno);
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  close(fd_);
  throw usage_error(fmt::format("another run writes its checkpoints to {}: give this one a folder of its own", folder));
}

CheckpointLock::~CheckpointLock() {
  if (fd_ >= 0) close(fd_);
}

void check_checkpoint_options(const CheckpointSettings& s) {
  if (s.folder.empty() && (s.every > 0 || s.keep > 0))
    throw usage_error(fmt::format("{} needs --checkpoint DIR, where checkpoints go",
                                  s.every > 0 ? "--checkpoint-every" : "--checkpoint-keep"));
  if (s.resume == "auto" && s.folder.empty())
    throw usage_error("--resume auto takes the newest checkpoint in --checkpoint DIR, which is missing");
}

void settle_checkpoints(CheckpointSettings& s) {
  if (!s.folder.empty()) checkpoint::require_writable(s.folder);
  if (s.resume.empty()) return;
  const bool automatic = s.resume == "auto";
  std::vector<std::string> candidates;
  if (automatic) {
    candidates = checkpoint::whole_checkpoints(s.folder);
    s.resume.clear();
  } else {
    candidates = {checkpoint::resolve(s.resume)};
  }
  for (const std::string& candidate : candidates) {
    try {
      checkpoint::Reader reader(candidate);
      reader.verify();
      s.resume = candidate;
      s.first_step = reader.index().step;
      return;
    } catch (const Error& error) {
      if (!automatic) throw;
      fmt::print(stderr, "prun: {}: taking the checkpoint before it\n", error.message());
    }
  }
}

void require_checkpoint_fits(const CheckpointSettings& s, const Job& job) {
  if (s.first_step < 0) return;
  const checkpoint::Reader reader(s.resume);
  reader.require_fit(job);
  const Program& program = job.classes.front();
  if (reader.index().seed != program.schedule.seed)
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} was trained with seed {}, this plan has {}: its data would come in another order",
                            s.resume, reader.index().seed, program.schedule.seed));
}

}  // namespace prun
