// prun plugins: lists the transports with path and capabilities, or why one cannot be loaded.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "comm/comm.h"
#include "commands.h"

namespace prun {

int plugins_command(Options& options) {
  if (options.explain) return explain_plugins(options);
  std::vector<PluginInfo> plugins = list_plugins(options.job.world.plugin_dirs);
  if (options.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const PluginInfo& p : plugins)
      rows.push_back({{"name", p.name},
                      {"version", p.version},
                      {"summary", p.summary},
                      {"path", p.path},
                      {"capabilities", p.capabilities},
                      {"error", p.error}});
    fmt::print("{}\n", nlohmann::json{{"plugins", rows}}.dump());
    return 0;
  }
  for (const PluginInfo& p : plugins) {
    if (!p.error.empty()) {
      fmt::print("{:<10} cannot be loaded: {}\n", p.name, p.error);
      continue;
    }
    fmt::print("{:<10} {:<8} {}\n{:<10} {:<8} {}\n", p.name, p.version, p.summary, "", "", join(p.capabilities, ", "));
  }
  if (plugins.empty()) fmt::print("no plugins in {}\n", join(options.job.world.plugin_dirs, ", "));
  return 0;
}

}  // namespace prun
