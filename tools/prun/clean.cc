// prun clean [DIR ..]: removes leftovers of crashed jobs: status folders of killed launchers, unfinished checkpoints,
// and in /dev/shm segments of NCCL and UCX and commits to memory. The shared memory of prun's transports has no name
// and ends with its users.
//
// Live jobs are not affected: a folder is removed only if its lock is free, a segment only if no process has it open.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "job/replicas.h"
#include "job_options.h"
#include "watch/run_folder.h"
#include "watch/status_folder.h"

namespace prun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Left {
  fs::path path;
  std::string what;
  uint64_t bytes = 0;
};

uint64_t bytes_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return fs::file_size(path, error);
  uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path, error))
    if (entry.is_regular_file(error)) bytes += entry.file_size(error);
  return bytes;
}

// Returns whether a path is old enough to remove, because locks do not reach a job on another host.
bool is_settled(const fs::path& path) {
  constexpr double kSettleSeconds = 60;
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return false;
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return now - static_cast<double>(info.st_mtim.tv_sec) > kSettleSeconds;
}

bool is_held(const fs::path& lock) {
  const int fd = open(lock.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno != ENOENT;
  const bool held = flock(fd, LOCK_SH | LOCK_NB) != 0;
  close(fd);
  return held;
}

void find_unfinished(const fs::path& checkpoints, std::vector<Left>& left) {
  std::error_code error;
  if (!fs::is_directory(checkpoints, error) || is_held(checkpoints / ".lock")) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step_") && name.ends_with(".tmp") && entry.is_directory(error) && is_settled(entry.path()))
      left.push_back({entry.path(), "unfinished checkpoint", 0});
  }
}

// Searches a folder of checkpoints, a run, or a folder of runs.
void find_in(const fs::path& folder, std::vector<Left>& left) {
  std::error_code error;
  find_unfinished(folder, left);
  find_unfinished(folder / "checkpoints", left);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (fs::exists(entry.path() / kRunFile, error)) find_unfinished(entry.path() / "checkpoints", left);
}

// Returns the paths below /dev/shm that this user's processes have open or mapped. Sets `all` to whether every process
// was readable.
std::set<std::string> used_segments(bool& all) {
  std::set<std::string> used;
  all = true;
  std::error_code error;
  for (const fs::directory_entry& process : fs::directory_iterator("/proc", error)) {
    struct stat info;
    const std::string name = process.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (stat(process.path().c_str(), &info) != 0 || info.st_uid != getuid()) continue;
    std::ifstream maps(process.path() / "maps");
    for (std::string line; std::getline(maps, line);)
      if (const size_t at = line.find("/dev/shm/"); at != std::string::npos) used.insert(line.substr(at));
    std::error_code denied;
    for (const fs::directory_entry& fd : fs::directory_iterator(process.path() / "fd", denied))
      if (const fs::path target = fs::read_symlink(fd.path(), error); target.string().starts_with("/dev/shm/"))
        used.insert(target.string());
    if (denied && fs::exists(process.path(), error)) all = false;
  }
  return used;
}

// Finds folders that are named after a launcher that has ended, because a launcher removes its own folder at its end.
void find_replicas(std::vector<Left>& left) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename().string();
    struct stat info;
    if (!name.starts_with(kReplicaFolder) || lstat(entry.path().c_str(), &info) != 0) continue;
    if (info.st_uid != getuid() || !S_ISDIR(info.st_mode)) continue;
    if (fs::exists("/proc/" + name.substr(kReplicaFolder.size()), error)) continue;
    left.push_back({entry.path(), "commits to memory of a job that was killed", 0});
  }
}

void find_segments(std::vector<Left>& left, std::vector<std::string>& remarks) {
  std::vector<Left> candidates;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename().string();
    struct stat info;
    if (!name.starts_with("nccl-") && !name.starts_with("ucx_shm_posix_")) continue;
    if (lstat(entry.path().c_str(), &info) != 0 || info.st_uid != getuid() || !S_ISREG(info.st_mode)) continue;
    if (is_settled(entry.path())) candidates.push_back({entry.path(), "shared memory", 0});
  }
  if (candidates.empty()) return;
  bool all = true;
  const std::set<std::string> used = used_segments(all);
  if (!all) {
    remarks.push_back("segments in /dev/shm are not removed: some processes of this user cannot be inspected");
    return;
  }
  for (Left& candidate : candidates)
    if (used.count(candidate.path.string()) == 0) left.push_back(std::move(candidate));
}

void find_status_folders(std::vector<Left>& left) {
  for (const PublishedJob& job : published_jobs())
    if (!job.running && is_settled(job.path)) left.push_back({job.path, "status of a job that was killed", 0});
}

class Clean final : public Command {
 public:
  void declare(OptionTable& table) override;
  int run() override;

 private:
  bool dry_run_ = false;
};

void Clean::declare(OptionTable& table) {
  table.flag("--dry-run", dry_run_, "list the files that would be removed, and remove nothing");
}

int Clean::run() {
  std::vector<Left> left;
  std::vector<std::string> remarks;
  for (const std::string& folder : line_.operands) {
    std::error_code error;
    if (!fs::is_directory(folder, error))
      throw usage_error(
          fmt::format("{} is not a directory; prun clean takes directories of checkpoints or runs", folder));
    find_in(folder, left);
  }
  if (line_.operands.empty()) find_in(kRunsFolder, left);
  find_status_folders(left);
  find_segments(left, remarks);
  find_replicas(left);
  std::set<fs::path> seen;  // two runs may share a folder of checkpoints
  std::erase_if(left, [&](const Left& one) { return !seen.insert(fs::weakly_canonical(one.path)).second; });
  Json rows = Json::array();
  int failures = 0;
  for (Left& one : left) {
    one.bytes = bytes_of(one.path);
    std::error_code error;
    if (!dry_run_) fs::remove_all(one.path, error);
    failures += error ? 1 : 0;
    const std::string done = error      ? fmt::format("cannot be removed: {}", error.message())
                             : dry_run_ ? "would be removed"
                                        : "removed";
    rows.push_back({{"path", one.path.string()}, {"what", one.what}, {"bytes", one.bytes}, {"result", done}});
    if (!line_.json)
      fmt::print("{}  ({}, {}): {}\n", one.path.string(), one.what, human_bytes(static_cast<int64_t>(one.bytes)), done);
  }
  for (const std::string& remark : remarks) fmt::print(stderr, "prun: {}\n", remark);
  if (line_.json)
    fmt::print("{}\n", rows.dump(-1, ' ', false, Json::error_handler_t::replace));
  else if (left.empty())
    fmt::print("nothing is left of jobs that crashed\n");
  return failures == 0 ? 0 : static_cast<int>(Exit::check_failed);
}

}  // namespace

std::unique_ptr<Command> make_clean() { return std::make_unique<Clean>(); }

}  // namespace prun
