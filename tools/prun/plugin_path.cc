// Splits a path: the file's stem is the plugin's name, and its folder becomes the first plugin directory.
#include "plugin_path.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"

namespace prun {
namespace fs = std::filesystem;

bool is_plugin_path(const std::string& typed) {
  return typed.find('/') != std::string::npos || fs::path(typed).extension() == ".so";
}

NamedPlugin name_plugin(const std::string& typed, const std::vector<std::string>& plugin_dirs) {
  NamedPlugin plugin{typed, plugin_dirs};
  if (!is_plugin_path(typed)) return plugin;
  const fs::path path = fs::absolute(typed);
  if (!fs::is_regular_file(path)) throw usage_error(fmt::format("there is no plugin {}", typed));
  plugin.name = path.stem().string();
  plugin.dirs.insert(plugin.dirs.begin(), path.parent_path().string());
  return plugin;
}

}  // namespace prun
