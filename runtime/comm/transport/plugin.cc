// Manifests, tables, options.
#include "comm/transport/plugin.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/child_process.h"
#include "base/plugin_file.h"
#include "base/plugin_table.h"
#include "base/text.h"
#include "comm/transport/job_state.h"
#include "comm/transport/transport_session.h"

namespace prun {
namespace fs = std::filesystem;
namespace {

std::string trim(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string_view::npos ? "" : std::string(text.substr(begin, end - begin + 1));
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(Exit::transport, fmt::format("{}: {}", path, why));
}

void read_manifest(const fs::path& path, PluginFile& file) {
  std::error_code ignored;
  if (const fs::file_status status = fs::status(path, ignored); fs::exists(status) && !fs::is_regular_file(status))
    throw Error(Exit::transport, fmt::format("{} is no regular file, as a manifest must be", path.string()));
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    size_t equals = line.find('=');
    if (line.empty() || line[0] == '#' || equals == std::string::npos) continue;
    std::string key = trim(line.substr(0, equals)), value = trim(line.substr(equals + 1));
    if (key == "auto") file.automatic = value == "1";
    if (key == "local_only") file.local_only = value == "1";
    if (key == "encrypts") file.encrypts = value == "1";
    if (key == "not_claimed") {
      std::istringstream words(value);
      for (std::string word; words >> word;) file.not_claimed.push_back(word);
    }
    if (key == "memory") {
      file.host_memory = value.find("host") != std::string::npos;
      file.cuda_memory = value.find("cuda") != std::string::npos;
    }
  }
}

constexpr PluginFunction kMandatory[] = {
    {"open", offsetof(prun_transport, open)},       {"address", offsetof(prun_transport, address)},
    {"connect", offsetof(prun_transport, connect)}, {"batch", offsetof(prun_transport, batch)},
    {"test", offsetof(prun_transport, test)},       {"abort", offsetof(prun_transport, abort)},
    {"close", offsetof(prun_transport, close)}};

static_assert(offsetof(prun_transport, version) == offsetof(PluginTableHead, version));

prun_transport checked_copy(const prun_transport* theirs, const std::string& path) {
  prun_transport table{};
  const std::string why =
      copy_plugin_table(theirs, &table, sizeof table, {"transport", PRUN_TRANSPORT_ABI, kMandatory});
  if (!why.empty()) refuse(path, why);
  return table;
}

// Calls use(name, setting) for each setting of the list; the name is "" if the key has no prefix.
template <typename Use>
void each_option(const std::string& options, Use use) {
  std::istringstream list(options);
  for (std::string item; std::getline(list, item, ',');) {
    size_t dot = item.substr(0, item.find('=')).find('.');
    bool named = dot != std::string::npos;
    use(named ? item.substr(0, dot) : "", named ? item.substr(dot + 1) : item);
  }
}

constexpr auto kLongestLoading = std::chrono::seconds(60);  // including all its libraries

// Returns use(plugin), evaluated in a child process, so that a plugin that crashes only ends the child. Throws if it
// does.
template <typename Use>
std::string ask_in_child(const PluginFile& file, Use use) {
  ChildProcess child([&](int pipe) {
    rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    try {
      const std::string said = use(load_plugin(file));
      [[maybe_unused]] const ssize_t all = write(pipe, said.data(), said.size());  // it fits the pipe
    } catch (const Error&) {  // thrown again when the plugin is used
    }
    _exit(0);
  });
  std::string said;
  if (!child.read_reply(ChildProcess::Clock::now() + kLongestLoading, said)) return "";
  if (const int status = child.wait(); WIFSIGNALED(status))
    refuse(file.path, fmt::format("it crashed with signal {} ({}) when it was loaded", WTERMSIG(status),
                                  strsignal(WTERMSIG(status))));
  return said;
}

// Returns the reason why the plugin would not open with these options, or "".
std::string refusal(const Plugin& plugin, const std::string& options) {
  const void* ask = plugin.table.ext != nullptr ? plugin.table.ext("check_options") : nullptr;
  if (ask == nullptr) return "";
  prun_result result{};
  result.size = sizeof result;
  const prun_status status = reinterpret_cast<prun_check_options>(const_cast<void*>(ask))(options.c_str(), &result);
  return status == PRUN_OK ? "" : status_text(status, result);
}

PluginInfo describe_plugin(const PluginFile& file) {
  PluginInfo info{.name = file.name, .path = file.path};
  try {
    ask_in_child(file, [](const Plugin&) { return ""; });
    prun_transport table = load_plugin(file).table;
    info.name = table.name;
    info.version = table.version;
    info.summary = table.summary != nullptr ? table.summary : "";
    auto add = [&](bool has, const char* word) {
      if (has) info.capabilities.emplace_back(word);
    };
    add((table.mem_kinds & 1u << PRUN_MEM_HOST) != 0, "host");
    add((table.mem_kinds & 1u << PRUN_MEM_CUDA) != 0, "cuda");
    add(table.coll != nullptr, "collectives");
    add(table.mem_alloc != nullptr, "memory");
    add(table.put != nullptr, "one-sided");
    add(table.local_only != 0, "local only");
  } catch (const Error& error) {
    info.error = error.message();
  }
  return info;
}

}  // namespace

std::vector<PluginFile> find_plugins(const std::vector<std::string>& dirs) {
  std::vector<PluginFile> found;
  for (const std::string& dir : dirs) {
    std::error_code ignored;
    if (!fs::is_directory(dir, ignored)) continue;
    refuse_writable_by_others(dir);
    for (const fs::directory_entry& entry : fs::directory_iterator(dir, ignored)) {
      if (entry.path().extension() != ".so") continue;
      PluginFile file{.name = entry.path().stem().string(), .path = entry.path().string()};
      bool known = std::any_of(found.begin(), found.end(), [&](const PluginFile& f) { return f.name == file.name; });
      if (known) continue;
      read_manifest(fs::path(entry.path()).replace_extension(".plugin"), file);
      found.push_back(std::move(file));
    }
  }
  std::sort(found.begin(), found.end(), [](const PluginFile& a, const PluginFile& b) { return a.name < b.name; });
  return found;
}

Plugin load_plugin(const PluginFile& file) {
  refuse_writable_by_others(file.path);
  report_activity("loading " + file.path);
  std::string why;
  void* symbol = load_entry(file.path, "prun_transport_v1", why);
  if (symbol == nullptr) refuse(file.path, why.rfind("it has", 0) == 0 ? "no prun transport: " + why : why);
  auto entry = reinterpret_cast<prun_transport_entry>(symbol);
  const prun_transport* theirs = entry(&core_services());
  if (theirs == nullptr) refuse(file.path, "it cannot work with this prun (its log line says why)");
  return Plugin{.name = file.name, .path = file.path, .table = checked_copy(theirs, file.path)};
}

PluginFile find_named(std::string_view name, const std::vector<std::string>& dirs) {
  std::vector<PluginFile> found = find_plugins(dirs);
  std::vector<std::string> names;
  for (const PluginFile& file : found) {
    if (file.name == name) return file;
    names.push_back(file.name);
  }
  if (names.empty()) {
    throw usage_error(fmt::format("unknown transport '{}': there is no plugin in {}", name,
                                  dirs.empty() ? "any directory (set PRUN_PLUGIN_PATH)" : join(dirs, ", ")));
  }
  std::string near = nearest_word(name, names);
  throw usage_error(fmt::format("unknown transport '{}'{}; found: {}", name,
                                near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near), join(names, ", ")));
}

Plugin load_named(std::string_view name, const std::vector<std::string>& dirs) {
  return load_plugin(find_named(name, dirs));
}

OpenParams::OpenParams(const WorldOptions& world, const std::string& plugin) : prun_open_params{} {
  std::vector<std::string> own;
  if (world.encrypt && find_named(plugin, world.plugin_dirs).encrypts) own.emplace_back("encrypt=1");
  each_option(world.transport_options, [&](const std::string& whose, const std::string& setting) {
    if (whose.empty() || whose == plugin) own.push_back(setting);
  });
  own_options_ = join(own, ",");
  size = sizeof(prun_open_params);
  rank = world.rank;
  ranks = world.ranks;
  local_rank = world.local_rank;
  local_ranks = world.local_ranks;
  options = own_options_.c_str();
  std::memcpy(job_secret, world.job_secret.data(), std::min(world.job_secret.size(), sizeof job_secret));
  std::strncpy(job_id, world.job_id.c_str(), sizeof job_id - 1);
  interface_name = world.network_interface.empty() ? nullptr : world.network_interface.c_str();
  mem_kind = world.memory;
  device = world.device;
  interface_address = world.network_address.empty() ? nullptr : world.network_address.c_str();
}

std::optional<std::string> option_value(const std::string& options, std::string_view name, std::string_view key) {
  std::optional<std::string> value;
  each_option(options, [&](const std::string& whose, const std::string& setting) {
    const size_t equals = setting.find('=');
    if (whose == name && equals != std::string::npos && setting.substr(0, equals) == key)
      value = setting.substr(equals + 1);
  });
  return value;
}

void check_option_names(const std::string& options, const std::vector<std::string>& dirs) {
  each_option(options, [&](const std::string& whose, const std::string&) {
    if (!whose.empty()) find_named(whose, dirs);
  });
}

void check_options(const std::string& options, const std::vector<std::string>& dirs) {
  std::map<std::string, std::string> settings;  // by plugin
  each_option(options, [&](const std::string& whose, const std::string& setting) {
    if (!whose.empty()) settings[whose] += setting + ",";
  });
  for (const auto& [name, own] : settings) {
    const auto ask = [&own = own](const Plugin& plugin) { return refusal(plugin, own); };
    if (const std::string why = ask_in_child(find_named(name, dirs), ask); !why.empty())
      throw usage_error(fmt::format("transport {}: {}", name, why));
  }
}

std::vector<PluginInfo> list_plugins(const std::vector<std::string>& dirs) {
  std::vector<PluginInfo> infos;
  for (const PluginFile& file : find_plugins(dirs)) infos.push_back(describe_plugin(file));
  return infos;
}

std::vector<std::string> plugin_directories(const std::string& program_path) {
  return plugin_folders("PRUN_PLUGIN_PATH", program_path, "lib/prun/plugins");
}

}  // namespace prun
