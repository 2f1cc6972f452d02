// prun conform PLUGIN [ITEM ...]: becomes prun_conform, which holds the suite and needs GoogleTest; prun does not.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

#include "commands.h"
#include "plugin_path.h"

namespace prun {
namespace fs = std::filesystem;

int conform_command(const Options& options, const Places& places) {
  const fs::path program = fs::path(places.program).parent_path() / "../libexec/prun/prun_conform";
  if (!fs::exists(program))
    throw usage_error(fmt::format("{} is not there: prun was built without the conformance suite. Install GoogleTest "
                                  "(libgtest-dev), configure again and build the target prun_conform",
                                  program.lexically_normal().string()));
  const NamedPlugin plugin = name_plugin(options.plan, places.plugin_dirs);
  std::vector<std::string> words = {program.string(), "--transport=" + plugin.name};
  for (const std::string& dir : plugin.dirs) words.push_back("--plugin-dir=" + dir);
  if (!options.transport_options.empty()) words.push_back("--options=" + options.transport_options);
  words.insert(words.end(), options.items.begin(), options.items.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  throw usage_error(fmt::format("{} cannot be started: {}", program.string(), std::strerror(errno)));
}

}  // namespace prun
