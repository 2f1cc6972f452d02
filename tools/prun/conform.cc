// prun conform PLUGIN [ITEM ...]: executes prun_conform or prun_conform_device, which contain the suites and, unlike
// prun, need GoogleTest. The exported symbol, or the folder of its name, distinguishes transports from devices.
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
#include "device/plugin_device.h"
#include "environment.h"
#include "job/device_probe.h"
#include "job_options.h"
#include "kernels/devices.h"
#include "plugin_path.h"

namespace prun {
namespace fs = std::filesystem;
namespace {

// Builds the suite for a prun in its build folder. tools/run omits the suites because they take as long to build as
// prun.
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

std::string suite_program(const char* name) {
  const fs::path prun = fs::read_symlink("/proc/self/exe");
  const fs::path program = prun.parent_path() / "../libexec/prun" / name;
  if (!fs::exists(program)) build_suite(prun.parent_path().parent_path(), name);
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

// Searches the file for the symbol's name, because loading the library could crash.
bool names_symbol(const fs::path& file, const std::string& symbol) {
  std::ifstream in(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  return bytes.find(symbol + '\0') != std::string::npos;
}

// Puts the folder of a path first in the search path of devices.
std::string name_device(const std::string& typed) {
  if (!is_plugin_path(typed)) return typed;
  const NamedPlugin plugin = name_plugin(typed, {});
  const char* path = std::getenv("PRUN_DEVICE_PATH");
  setenv("PRUN_DEVICE_PATH", (plugin.dirs.front() + (path == nullptr ? "" : std::string(":") + path)).c_str(), 1);
  return plugin.name;
}

// Throws if no such device exists; errors of an existing plugin are reported by the suite.
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

class Conform final : public Command {
 public:
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;
  JobSpec* job() override { return &job_; }
  const char* json_help() const override { return "one JSON object an item: item, result, text, case"; }

 private:
  bool is_device() const;
  [[noreturn]] void conform_device();

  JobSpec job_;  // its device and transport options
  std::string plugin_;
  bool device_given_ = false;
};

void Conform::declare(OptionTable& table) {
  option::transport_options(table, job_);
  option::device(table, job_);
  option::device_options(table, job_);
  option::timeout(table, job_);
}

void Conform::settle() {
  device_given_ = line_.given("--device");
  if (!device_given_ && !line_.operands.empty()) {
    plugin_ = line_.operands[0];
    line_.operands.erase(line_.operands.begin());
  }
  if (plugin_.empty() && !device_given_)
    throw usage_error("which plugin? For example: prun conform shm, or prun conform build/lib/prun/plugins/mine.so");
}

bool Conform::is_device() const {
  if (device_given_) return true;
  if (is_plugin_path(plugin_))
    return names_symbol(plugin_, "prun_device_v1") && !names_symbol(plugin_, "prun_transport_v1");
  std::vector<std::string> names;
  for (const PluginFile& file : find_plugins(job_.world.plugin_dirs)) names.push_back(file.name);
  if (std::find(names.begin(), names.end(), plugin_) != names.end()) return false;
  const std::vector<std::string> devices = device_names();
  if (std::find(devices.begin(), devices.end(), plugin_) != devices.end()) return true;
  names.insert(names.end(), devices.begin(), devices.end());
  throw usage_error(fmt::format("there is no transport and no device '{}'{}", plugin_, did_you_mean(plugin_, names)));
}

void Conform::conform_device() {
  const std::string name = name_device(device_given_ ? job_.device : plugin_);
  require_device(name, job_.first_device);
  std::vector<std::string> words = {suite_program("prun_conform_device"), "--device=" + name,
                                    fmt::format("--index={}", job_.first_device),
                                    fmt::format("--seconds={:.0f}", job_.world.deadline_s)};
  if (!job_.device_options.empty()) words.push_back("--options=" + job_.device_options);
  become(std::move(words), line_.operands, line_.json);
}

int Conform::run() {
  warn_of_useless_variables();
  if (is_device()) conform_device();
  const NamedPlugin plugin = name_plugin(plugin_, job_.world.plugin_dirs);
  std::vector<std::string> words = {suite_program("prun_conform"), "--transport=" + plugin.name};
  for (const std::string& dir : plugin.dirs) words.push_back("--plugin-dir=" + dir);
  if (!job_.world.transport_options.empty()) words.push_back("--options=" + job_.world.transport_options);
  become(std::move(words), line_.operands, line_.json);
}

}  // namespace

std::unique_ptr<Command> make_conform() { return std::make_unique<Conform>(); }

}  // namespace prun
