// prun conform PLUGIN [ITEM ...]: becomes prun_conform or prun_conform_device, which hold the suites and need
// GoogleTest; prun does not. The symbol that a plugin exports, or the folder of its name, tells transports from
// devices.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "comm/transport/plugin.h"
#include "commands.h"
#include "device/device.h"
#include "device/plugin_device.h"
#include "job/device_probe.h"
#include "plugin_path.h"

namespace prun {
namespace fs = std::filesystem;
namespace {

// Of a prun that runs where it was built; tools/run leaves the suites out, which take as long as prun itself.
void build_suite(const fs::path& build, const std::string& target) {
  if (!fs::exists(build / "CMakeCache.txt")) return;
  fmt::print(stderr, "prun: building the suite, once\n");
  const pid_t child = fork();
  if (child == 0) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execlp("cmake", "cmake", "--build", build.c_str(), "--target", target.c_str(), nullptr);
    _exit(127);
  }
  if (child > 0) waitpid(child, nullptr, 0);
}

std::string suite_program(const Options& options, const char* name) {
  const fs::path program = fs::path(options.program).parent_path() / "../libexec/prun" / name;
  if (!fs::exists(program)) build_suite(fs::path(options.program).parent_path().parent_path(), name);
  if (!fs::exists(program))
    throw usage_error(
        fmt::format("{} is not there: prun was built without the conformance suite. Install GoogleTest "
                    "(libgtest-dev), configure again and build the target {}",
                    program.lexically_normal().string(), name));
  return program.string();
}

[[noreturn]] void become(std::vector<std::string> words, const std::vector<std::string>& items, bool json) {
  if (json) words.emplace_back("--json");
  words.insert(words.end(), items.begin(), items.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  throw usage_error(fmt::format("{} cannot be started: {}", words[0], std::strerror(errno)));
}

// Searches the file for the symbol's name. Loading the library could crash.
bool names_symbol(const fs::path& file, const std::string& symbol) {
  std::ifstream in(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  return bytes.find(symbol + '\0') != std::string::npos;
}

bool is_device(const Options& options) {
  if (options.device_given) return true;
  if (is_plugin_path(options.job.plan))
    return names_symbol(options.job.plan, "prun_device_v1") && !names_symbol(options.job.plan, "prun_transport_v1");
  std::vector<std::string> names;
  for (const PluginFile& file : find_plugins(options.job.world.plugin_dirs)) names.push_back(file.name);
  if (std::find(names.begin(), names.end(), options.job.plan) != names.end()) return false;
  const std::vector<std::string> devices = device_names();
  if (std::find(devices.begin(), devices.end(), options.job.plan) != devices.end()) return true;
  names.insert(names.end(), devices.begin(), devices.end());
  throw usage_error(fmt::format("there is no transport and no device '{}'{}", options.job.plan,
                                did_you_mean(options.job.plan, names)));
}

// Puts the folder of a path in front of the folders where devices are looked for.
std::string name_device(const std::string& typed) {
  if (!is_plugin_path(typed)) return typed;
  const NamedPlugin plugin = name_plugin(typed, {});
  const char* path = std::getenv("PRUN_DEVICE_PATH");
  setenv("PRUN_DEVICE_PATH", (plugin.dirs.front() + (path == nullptr ? "" : std::string(":") + path)).c_str(), 1);
  return plugin.name;
}

// Throws where no such device exists; a plugin that is wrong is for the suite to report.
void require_device(const std::string& name, int index) {
  const std::vector<DevicePluginFile> plugins = find_device_plugins();
  if (std::none_of(plugins.begin(), plugins.end(), [&](const DevicePluginFile& file) { return file.name == name; }) &&
      open_device(name)->queue() == nullptr)
    throw usage_error(
        fmt::format("the device {} is a part of prun, not behind prun/device.h: there is nothing to try", name));
  const DeviceReport report = probe_device(name, {});
  if (report.version.empty()) return;
  if (report.probe.devices == 0) throw usage_error(fmt::format("{}: there is none to try: {}", name, report.problem));
  if (index >= report.probe.devices)
    throw usage_error(fmt::format("there is no device {}:{}: there {} {}, from 0 on", name, index,
                                  report.probe.devices == 1 ? "is" : "are", report.probe.devices));
}

[[noreturn]] void conform_device(const Options& options) {
  const std::string name = name_device(options.device_given ? options.job.device : options.job.plan);
  require_device(name, options.job.first_device);
  std::vector<std::string> words = {suite_program(options, "prun_conform_device"), "--device=" + name,
                                    fmt::format("--index={}", options.job.first_device),
                                    fmt::format("--seconds={:.0f}", options.job.world.deadline_s)};
  if (!options.job.device_options.empty()) words.push_back("--options=" + options.job.device_options);
  become(std::move(words), options.operands, options.json);
}

}  // namespace

int conform_command(Options& options) {
  if (is_device(options)) conform_device(options);
  const NamedPlugin plugin = name_plugin(options.job.plan, options.job.world.plugin_dirs);
  std::vector<std::string> words = {suite_program(options, "prun_conform"), "--transport=" + plugin.name};
  for (const std::string& dir : plugin.dirs) words.push_back("--plugin-dir=" + dir);
  if (!options.job.world.transport_options.empty()) words.push_back("--options=" + options.job.world.transport_options);
  become(std::move(words), options.operands, options.json);
}

}  // namespace prun
