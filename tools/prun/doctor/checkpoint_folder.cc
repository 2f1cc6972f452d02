// --checkpoint DIR: tries a checkpoint's operations on a folder: write, fsync, rename, lock, read back.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/text.h"
#include "doctor/check.h"

namespace prun::doctor {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kTried = int64_t{64} << 20;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string speed(int64_t bytes, double seconds) {
  return human_bytes(static_cast<int64_t>(static_cast<double>(bytes) / std::max(seconds, 1e-9))) + "/s";
}

struct KnownFilesystem {
  uint64_t magic;
  const char* name;
  const char* fix;  // null: fine
};
const KnownFilesystem kFilesystems[] = {
    {0x01021994, "tmpfs", "it is in memory, and lost when the machine stops; name a folder on a disk"},
    {0x858458f6, "ramfs", "it is in memory, and lost when the machine stops; name a folder on a disk"},
    {0x6969, "NFS", nullptr},
    {0x794c7630, "overlayfs", "it is the container's own layer, gone with it: mount a volume there"},
    {0xef53, "ext", nullptr},
    {0x58465342, "XFS", nullptr},
    {0x9123683e, "Btrfs", nullptr},
    {0x0bd00bd0, "Lustre", nullptr},
};

Finding filesystem(const std::string& folder) {
  struct statfs status {};
  if (statfs(folder.c_str(), &status) != 0) return {"filesystem", Status::warn, std::strerror(errno), ""};
  for (const KnownFilesystem& known : kFilesystems)
    if (static_cast<uint64_t>(status.f_type) == known.magic)
      return {"filesystem", known.fix == nullptr ? Status::ok : Status::warn, known.name,
              known.fix == nullptr ? "" : known.fix};
  return {"filesystem", Status::ok, fmt::format("of type {:#x}", static_cast<uint64_t>(status.f_type))};
}

Finding space(const std::string& folder) {
  struct statvfs status {};
  if (statvfs(folder.c_str(), &status) != 0) return {"space", Status::fail, std::strerror(errno), ""};
  Finding found{"space"};
  found.number = static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
  found.text = human_bytes(found.number) + " free";
  if (found.number < int64_t{1} << 30) {
    found.status = Status::warn;
    found.fix = "a checkpoint has parameters and optimizer state: 12 bytes a parameter with AdamW; --checkpoint-keep 2";
  }
  return found;
}

Finding failure(const char* what, const std::string& fix) { return {what, Status::fail, std::strerror(errno), fix}; }

// Performs the operations in the order of a checkpoint; stops at the first failure.
Findings steps(const fs::path& folder) {
  Findings found;
  const fs::path written = folder / fmt::format(".prun-doctor-{}.tmp", getpid()),
                 renamed = folder / fmt::format(".prun-doctor-{}", getpid());
  const int fd = open(written.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return {failure("write", "the user who trains must be able to write there (ls -ld)")};
  const std::string piece(size_t{4} << 20, 'p');
  const auto one = [&]() -> Finding {
    double begin = seconds_now();
    for (int64_t done = 0; done < kTried;) {
      const ssize_t n = write(fd, piece.data(), static_cast<size_t>(std::min(std::ssize(piece), kTried - done)));
      if (n <= 0) return failure("write", "free some space, or name another folder");
      done += n;
    }
    found.push_back({"write", Status::ok, speed(kTried, seconds_now() - begin)});
    begin = seconds_now();
    if (fsync(fd) != 0) return failure("fsync", "this folder cannot sync files to the disk; name another");
    const double took = seconds_now() - begin;
    Finding synced{"fsync", Status::ok, fmt::format("{} for {}", human_seconds(took), human_bytes(kTried))};
    synced.number = static_cast<int64_t>(static_cast<double>(kTried) / std::max(took, 1e-9));
    if (took > 10) synced.status = Status::warn, synced.fix = "checkpoints will take long: a faster disk, or fewer";
    found.push_back(synced);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
      return failure("lock", "two jobs could write one folder: mount it with locks (NFS: without nolock)");
    if (rename(written.c_str(), renamed.c_str()) != 0)
      return failure("rename", "a checkpoint becomes visible by it: name another folder");
    const int parent = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool kept = parent >= 0 && fsync(parent) == 0;
    if (parent >= 0) close(parent);
    if (!kept) return failure("rename", "the folder itself cannot be synced");
    return {"rename", Status::ok, "renamed, locked, its folder synced"};
  };
  found.push_back(one());
  close(fd);
  unlink(written.c_str());
  unlink(renamed.c_str());
  return found;
}

}  // namespace

Findings checkpoint_folder(const DoctorOptions& options) {
  const std::string& folder = options.job.checkpoint.folder;
  if (folder.empty()) return {};
  std::error_code error;
  fs::path there = fs::absolute(folder).lexically_normal();  // the part that exists
  while (!fs::exists(there, error)) there = there.parent_path();
  fs::create_directories(folder, error);
  if (error) return {{"folder", Status::fail, fmt::format("{}: {}", folder, error.message()), "name another folder"}};
  Findings found = {filesystem(folder), space(folder)};
  for (Finding& each : steps(folder)) found.push_back(std::move(each));
  for (fs::path made = fs::absolute(folder).lexically_normal(); made != there && !error; made = made.parent_path())
    fs::remove(made, error);
  return found;
}

}  // namespace prun::doctor
