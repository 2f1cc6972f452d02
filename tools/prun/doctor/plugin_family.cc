// Loads the transports and checks their ABI.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "comm/comm.h"
#include "comm/transport/plugin.h"
#include "doctor/check.h"

namespace prun::doctor {

Findings plugins(const DoctorOptions& options) {
  Findings found;
  const std::vector<PluginFile> files = find_plugins(options.job.world.plugin_dirs);
  for (const PluginInfo& plugin : list_plugins(options.job.world.plugin_dirs)) {
    const auto file =
        std::find_if(files.begin(), files.end(), [&](const PluginFile& each) { return each.name == plugin.name; });
    const bool needed = file != files.end() && file->automatic && file->host_memory;
    if (plugin.error.empty())
      found.push_back({plugin.name, Status::ok, fmt::format("{} {}", plugin.version, plugin.summary)});
    else
      found.push_back({plugin.name, needed ? Status::fail : Status::absent, "cannot be loaded: " + plugin.error,
                       needed ? "build or install prun again" : ""});
  }
  if (found.empty())
    found.push_back({"transports", Status::fail, "no plugin was found beside this program or in PRUN_PLUGIN_PATH",
                     "build the targets prun_shm and prun_socket, or install prun again"});
  return found;
}

}  // namespace prun::doctor
