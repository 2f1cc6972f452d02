#include "checkpoint/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "checkpoint/history.h"

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;

void write_synced(const std::string& path, std::string_view text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) throw write_failed(path, errno);
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int code = errno;
      close(fd);
      throw write_failed(path, code);
    }
    text.remove_prefix(n);
  }
  const bool synced = fsync(fd) == 0;
  const int code = errno;
  close(fd);
  if (!synced) throw write_failed(path, code);
}

void rename_or_throw(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw write_failed(to, errno);
}

bool is_of_run(const std::string& checkpoint, const std::string& run) {
  try {
    return !run.empty() && read_index(checkpoint).lineage.run == run;
  } catch (const Error&) {  // damaged, or copied in part
    return false;
  }
}

constexpr const char* kMakeRoom = "free space, or keep fewer (--checkpoint-keep)";

}  // namespace

Error invalid(const std::string& path, std::string_view what) {
  return Error(Exit::checkpoint_invalid, fmt::format("{}: {}", path, what));
}

WriteError write_failed(const std::string& path, int code) {
  const std::string room = fmt::format("; {}", kMakeRoom);
  const char* help = code == ENOSPC || code == EDQUOT  ? room.c_str()
                     : code == EFBIG                   ? "; the limit on the size of files (ulimit -f) is lower"
                     : code == EACCES || code == EROFS ? "; --checkpoint names a folder that you may write to"
                                                       : "";
  return {fmt::format("cannot write {}: {}{}", path, strerror(code), help), code};
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file) throw invalid(path, strerror(errno != 0 ? errno : EIO));
  return text.str();
}

void write_file(const std::string& path, std::string_view text) { write_synced(path, text); }

void sync_folder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw write_failed(path, errno);
  const bool synced = fsync(fd) == 0;
  const int code = errno;
  close(fd);
  if (!synced && code != EINVAL) throw write_failed(path, code);  // EINVAL: the file system cannot sync folders
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw write_failed(path, error.value());
}

std::string staging_folder(const std::string& folder, const std::string& name, const std::string& run) {
  return fmt::format("{}/{}.{}.tmp", folder, name, run);
}

int64_t free_bytes(const std::string& folder) {
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0) return -1;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

// Free space is read first, so blocks that other ranks allocate meanwhile are counted at least once.
int64_t room_for(const std::string& folder, const std::string& staging) {
  int64_t room = free_bytes(folder);
  if (room < 0) return room;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(staging, error)) {
    struct stat info {};
    if (stat(entry.path().c_str(), &info) == 0) room += int64_t{info.st_blocks} * 512;
  }
  return room;
}

void require_room(const std::string& folder, const std::string& staging, int64_t bytes) {
  const int64_t room = room_for(folder, staging);
  if (room >= 0 && room < bytes)
    throw WriteError(fmt::format("cannot write {}: {}; {}", staging, strerror(ENOSPC), kMakeRoom), ENOSPC);
}

void remove_staged(const std::string& folder, const std::string& run, int64_t end) {
  std::vector<fs::path> staged;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    if (std::sscanf(name.c_str(), "step_%" SCNd64 ".", &step) == 1 && step < end && name.ends_with("." + run + ".tmp"))
      staged.push_back(entry.path());
  }
  for (const fs::path& path : staged) fs::remove_all(path, error);
}

// All writes that need space precede the renames, so a full disk never leaves a partial commit.
void commit(const std::string& folder, const std::string& staging, const std::string& name, const std::string& run) {
  const std::string to = folder + "/" + name, latest = folder + "/" + kLatest;
  const bool again = fs::exists(to);
  if (again && !is_of_run(to, run))
    throw WriteError(fmt::format("cannot write {}: it has come there while this run was going on", to), EEXIST);
  sync_folder(staging);
  write_synced(latest + ".tmp", name + "\n");
  // A restart from an earlier step writes this checkpoint again. The old one is removed only after LATEST names the new
  // one.
  const std::string before = to + ".old";
  std::error_code ignored;
  fs::remove_all(before, ignored);
  if (again) rename_or_throw(to, before);
  try {
    rename_or_throw(staging, to);
    sync_folder(folder);
    rename_or_throw(latest + ".tmp", latest);
  } catch (const Error&) {
    if (fs::exists(to)) fs::rename(to, staging, ignored);
    if (again) fs::rename(before, to, ignored);
    throw;
  }
  sync_folder(folder);
  fs::remove_all(before, ignored);
}

void remove_superseded(const std::string& folder, const std::string& name, int keep,
                       const std::set<std::string>& read) {
  if (keep <= 0) return;
  const int64_t branch = parse_checkpoint_name(name).value_or(CheckpointName()).branch;
  int kept = 0;
  for (const std::string& path : whole_checkpoints(folder)) {
    const std::string each = fs::path(path).filename().string();
    if (parse_checkpoint_name(each)->branch != branch || ++kept <= keep || each == name || read.contains(each))
      continue;
    try {
      if (!read_index(path).lineage.known()) continue;
    } catch (const Error&) {  // damaged: its run is unknown
      continue;
    }
    static_cast<void>(remove_checkpoint(path));  // on failure the checkpoint remains
  }
}

// Earlier checkpoints win ties, so that the walk from the newest one replaces the best so far by an equal one.
std::string mark_best(const std::string& folder, const std::string& name) {
  const auto is_better = [](const Progress& a, const Progress& b) {
    return a.largest ? a.value > b.value : a.value < b.value;
  };
  std::string best;
  Progress of_best;
  for (std::optional<std::string> each = fmt::format("{}/{}", folder, name); each; each = before(*each)) {
    Index index;
    try {
      index = read_index(*each);
    } catch (const Error&) {
      continue;
    }
    const Progress& progress = index.progress;
    if (best.empty() && of_best.metric.empty()) of_best.metric = progress.metric;  // the newest one's
    const bool own = progress.step == index.position.step && progress.metric == of_best.metric;
    if (!own || fs::path(*each).parent_path() != fs::path(folder)) continue;
    if (!best.empty() && is_better(of_best, progress)) continue;
    best = fs::path(*each).filename().string();
    of_best = progress;
  }
  if (best.empty()) return best;
  const std::string link = folder + "/" + kBest;
  std::error_code error;
  fs::remove(link + ".tmp", error);
  fs::create_directory_symlink(best, link + ".tmp", error);
  if (error) throw write_failed(link, error.value());
  rename_or_throw(link + ".tmp", link);
  sync_folder(folder);
  return best;
}

std::error_code remove_checkpoint(const std::string& path) {
  const std::string aside = path + ".removed.tmp";
  std::error_code error, ignored;
  fs::remove_all(aside, ignored);
  fs::rename(path, aside, error);
  if (!error) fs::remove_all(aside, ignored);
  return error;
}

void require_writable(const std::string& folder) {
  make_folder(folder);
  const std::string probe = fmt::format("{}/.probe.{}", folder, getpid());
  const int fd = open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) throw write_failed(folder, errno);
  close(fd);
  unlink(probe.c_str());
}

}  // namespace prun::checkpoint
