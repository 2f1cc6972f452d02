// Any user may create the name in /tmp first, so the path is accepted only if it is a folder of this user.
#include "launch/runtime_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace prun {
namespace {

bool is_own_folder(const std::string& path, struct stat& status) {
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
         (status.st_mode & 077) == 0;
}

std::string own_folder(const std::string& path) {
  struct stat status {};
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    throw Error(Exit::join, fmt::format("cannot make the folder {}, where processes of one host meet: {}", path,
                                        std::strerror(errno)));
  if (!is_own_folder(path, status))
    throw Error(Exit::join,
                fmt::format("{}, where processes of one host meet, must be a folder of user {} alone; it "
                            "belongs to user {}, with mode {:o}: remove it, or set XDG_RUNTIME_DIR to a folder "
                            "of yours with mode 700",
                            path, geteuid(), status.st_uid, status.st_mode & 07777));
  return path;
}

}  // namespace

std::string runtime_folder() {
  struct stat status {};
  const char* chosen = std::getenv("XDG_RUNTIME_DIR");
  // Launchers export the variable to hosts on which its folder may not exist.
  if (chosen != nullptr && *chosen == '/' && is_own_folder(chosen, status))
    return own_folder(std::string(chosen) + "/prun");
  return own_folder(fmt::format("/tmp/prun-{}", geteuid()));
}

std::string runtime_folder(const std::string& name) { return own_folder(runtime_folder() + "/" + name); }

}  // namespace prun
