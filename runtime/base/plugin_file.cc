#include "base/plugin_file.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace fs = std::filesystem;
namespace {

bool is_trusted_owner(uid_t owner) {
  struct stat program {};
  return owner == 0 || owner == geteuid() || (stat("/proc/self/exe", &program) == 0 && owner == program.st_uid);
}

// Groups of administrators, and the personal group that Debian and Red Hat give each user.
bool is_trusted_group(gid_t group, uid_t owner) {
  constexpr gid_t kUsers = 100, kFirstOfPeople = 1000;
  if (group < kFirstOfPeople) return group != kUsers;
  const struct group* names = getgrgid(group);
  const struct passwd* person = getpwuid(owner);
  return names != nullptr && person != nullptr && std::string_view(names->gr_name) == person->pw_name &&
         *names->gr_mem == nullptr;
}

}  // namespace

std::vector<std::string> plugin_folders(const char* variable, const std::string& program, const std::string& folder) {
  std::vector<std::string> folders;
  if (const char* list = std::getenv(variable))
    for (std::string& each : split(list, ':'))
      if (!each.empty()) folders.push_back(std::move(each));
  std::error_code failed;
  fs::path whole = fs::canonical(program, failed);
  if (failed) whole = fs::absolute(program);
  folders.push_back((whole.parent_path().parent_path() / folder).string());
  return folders;
}

void refuse_writable_by_others(const std::string& path) {
  const auto refuse = [&](const std::string& why, const char* advice) {
    throw usage_error(fmt::format("{}: {}, so prun loads no plugin from there{}", path, why, advice));
  };
  std::error_code failed;
  fs::path each = fs::canonical(path, failed);
  struct stat status {};
  if (failed || stat(each.c_str(), &status) != 0) return;
  if (!is_trusted_owner(status.st_uid)) refuse(fmt::format("it belongs to user {}", status.st_uid), "");
  for (bool inside = true; stat(each.c_str(), &status) == 0; each = each.parent_path(), inside = false) {
    const std::string what = inside ? "it" : each.string();
    const bool keeps = !inside && (status.st_mode & S_ISVTX) != 0;  // sticky: others cannot rename this user's files
    if ((status.st_mode & S_IWOTH) != 0 && !keeps)
      refuse(fmt::format("all users may write to {}", what), " (chmod o-w)");
    if ((status.st_mode & S_IWGRP) != 0 && !keeps && !is_trusted_group(status.st_gid, status.st_uid))
      refuse(fmt::format("group {} may write to {}", status.st_gid, what), " (chmod g-w)");
    if (each == each.root_path()) return;
  }
}

void* load_entry(const std::string& file, const char* symbol, std::string& why) {
  const std::string path = fs::absolute(file).string();  // otherwise dlopen would search the system's folders
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = dlerror();
    why = error != nullptr ? error : "unknown reason";
    if (why.rfind(path + ": ", 0) == 0) why.erase(0, path.size() + 2);
    why = "cannot be loaded: " + why;
    return nullptr;
  }
  void* entry = dlsym(handle, symbol);
  if (entry == nullptr) why = fmt::format("it has no symbol {}", symbol);
  return entry;
}

}  // namespace prun
