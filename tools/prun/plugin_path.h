// A plugin as users name it: by the name that `prun plugins` shows, or by the path of a .so.
#pragma once
#include <string>
#include <vector>

namespace prun {

struct NamedPlugin {
  std::string name;               // or "auto"
  std::vector<std::string> dirs;  // searched for it, the folder of the .so first
};
bool is_plugin_path(const std::string& typed);  // not a name
// Throws usage_error for a path without a file; names are not looked up.
NamedPlugin name_plugin(const std::string& typed, const std::vector<std::string>& plugin_dirs);

}  // namespace prun
