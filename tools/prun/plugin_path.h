// A plugin as typed by the user: the name in `prun plugins`, or the path of a .so.
#pragma once
#include <string>
#include <vector>

namespace prun {

struct NamedPlugin {
  std::string name;               // or "auto"
  std::vector<std::string> dirs;  // search path; the folder of the .so comes first
};
bool is_plugin_path(const std::string& typed);  // returns false for a name
// Throws usage_error for a path without a file; does not look up names.
NamedPlugin name_plugin(const std::string& typed, const std::vector<std::string>& plugin_dirs);

}  // namespace prun
