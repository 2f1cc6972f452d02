// The file is created by link(2), which fails if the file exists, also on NFS. A process is identified by its host's
// boot, its pid and its start time, so that a reused pid is another process.
#include "job/owner_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/machine_id.h"
#include "checkpoint/folder.h"

namespace prun {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns the start time in clock ticks since the host's boot; "" = no such process.
std::string begin_of(const std::string& pid) {
  const std::string line = first_line("/proc/" + pid + "/stat");
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream rest(line.substr(name_end + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;  // proc(5): starttime is the 22nd
  return field;
}

std::string own_host() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return host;
}

struct Owner {
  std::string boot, pid, begin, host;

  std::string text() const { return fmt::format("{} {} {} {}\n", boot, pid, begin, host); }
  // The host's name distinguishes clones of a virtual machine, whose boot ids are equal.
  bool gone() const { return boot == machine_id() && host == own_host() && begin_of(pid) != begin; }
};

Owner owner_here() {
  const std::string pid = std::to_string(getpid());
  return {machine_id(), pid, begin_of(pid), own_host()};
}

Owner read_owner(const std::string& path) {
  Owner owner;
  std::istringstream(first_line(path)) >> owner.boot >> owner.pid >> owner.begin >> owner.host;
  return owner;
}

}  // namespace

OwnerFile::OwnerFile(std::string path, const std::string& what) : path_(std::move(path)), pid_(getpid()) {
  const Owner here = owner_here();
  const std::string mine = fmt::format("{}.{}.{}", path_, here.host, here.pid);
  checkpoint::write_file(mine, here.text());
  for (;;) {
    const bool made = link(mine.c_str(), path_.c_str()) == 0;
    const int code = errno;
    const Owner owner = read_owner(path_);
    if (made || owner.text() == here.text()) break;  // NFS may lose the reply to a successful link
    if (code != EEXIST || !owner.gone()) {
      unlink(mine.c_str());
      if (code != EEXIST) throw checkpoint::write_failed(path_, code);
      throw usage_error(fmt::format("{} (pid {} on {}); this file system has no locks: remove {} if that run has ended",
                                    what, owner.pid, owner.host, path_));
    }
    // Several processes may find the owner gone, and only one of them renames its file. If the renamed file differs, a
    // process has created its own since, and it is put back.
    const std::string aside = mine + ".gone";
    if (std::rename(path_.c_str(), aside.c_str()) == 0 && read_owner(aside).text() != owner.text())
      std::rename(aside.c_str(), path_.c_str());
    unlink(aside.c_str());
    std::this_thread::sleep_for(std::chrono::seconds(1));  // ranks of a killed launcher end within a second
  }
  unlink(mine.c_str());
}

OwnerFile::~OwnerFile() {
  if (getpid() == pid_) unlink(path_.c_str());
}

}  // namespace prun
