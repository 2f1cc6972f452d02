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

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatest = "LATEST";

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

constexpr const char* kMakeRoom = "make room, or keep fewer (--checkpoint-keep)";

}  // namespace

WriteError write_failed(const std::string& path, int code) {
  const std::string room = fmt::format("; {}", kMakeRoom);
  const char* help = code == ENOSPC || code == EDQUOT  ? room.c_str()
                     : code == EACCES || code == EROFS ? "; --checkpoint names a folder that you may write to"
                                                       : "";
  return {fmt::format("cannot write {}: {}{}", path, strerror(code), help), code};
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file) throw Error(Exit::checkpoint_invalid, fmt::format("{}: {}", path, strerror(errno != 0 ? errno : EIO)));
  return text.str();
}

void write_file(const std::string& path, std::string_view text) { write_synced(path, text); }

void sync_folder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw write_failed(path, errno);
  const bool synced = fsync(fd) == 0;
  const int code = errno;
  close(fd);
  if (!synced && code != EINVAL) throw write_failed(path, code);  // some file systems sync no folders
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw write_failed(path, error.value());
}

std::string step_folder(const std::string& folder, int64_t step) { return fmt::format("{}/step_{:08}", folder, step); }

std::string staging_folder(const std::string& folder, int64_t step, const std::string& run) {
  return fmt::format("{}.{}.tmp", step_folder(folder, step), run);
}

int64_t free_bytes(const std::string& folder) {
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0) return -1;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

// What others of this save write meanwhile is counted once at least, since the disk is asked first.
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

// What may need room comes before the renames, so that a disk that is full commits nothing by halves.
void commit(const std::string& folder, const std::string& staging, int64_t step, int keep) {
  const std::string to = step_folder(folder, step), latest = folder + "/" + kLatest;
  sync_folder(staging);
  write_synced(latest + ".tmp", fs::path(to).filename().string() + "\n");
  // A run that was resumed from before this step makes it again: the old one goes only once LATEST can do without it.
  const std::string before = to + ".old";
  std::error_code ignored;
  fs::remove_all(before, ignored);
  const bool again = fs::exists(to);
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
  if (keep <= 0) return;
  const std::vector<std::string> all = whole_checkpoints(folder);
  for (size_t i = 0, kept = 0; i < all.size(); ++i) {
    if (all[i] == to || ++kept < static_cast<size_t>(keep)) continue;
    fs::remove_all(all[i], ignored);
  }
}

std::vector<std::string> whole_checkpoints(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("step_", 0) == 0 && name.find('.') == std::string::npos && fs::exists(entry.path() / "index.json"))
      found.push_back(folder + "/" + name);
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

std::string resolve(const std::string& path) {
  if (fs::exists(path + "/index.json")) return path;
  if (!fs::exists(path))
    throw Error(Exit::checkpoint_invalid, fmt::format("there is no checkpoint at {}: no such folder", path));
  if (std::ifstream latest(path + "/" + kLatest); latest) {
    std::string name;
    std::getline(latest, name);
    if (fs::exists(path + "/" + name + "/index.json")) return path + "/" + name;
  }
  const std::vector<std::string> all = whole_checkpoints(path);
  if (all.empty())
    throw Error(Exit::checkpoint_invalid,
                fmt::format("there is no checkpoint in {}: no index.json, and no folder step_N that has one", path));
  return all.front();
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
