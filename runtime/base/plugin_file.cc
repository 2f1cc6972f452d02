#include "base/plugin_file.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace fs = std::filesystem;

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

void refuse_world_writable(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && (status.st_mode & S_IWOTH) != 0) {
    throw usage_error(
        fmt::format("{}: everybody may write to it, so prun loads no plugin from there (chmod o-w)", path));
  }
}

void* load_entry(const std::string& file, const char* symbol, std::string& why) {
  const std::string path = fs::absolute(file).string();  // else dlopen would search the system's folders
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
