// Finds and loads transports: a plugin is NAME.so in a plugin directory, loaded only when it is needed.
//
// Querying a plugin means loading it and its libraries (NCCL, for one), which `auto` avoids. A plugin that should be
// considered therefore has a text file NAME.plugin beside it: auto, memory, local_only, and the items it does not
// claim.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm.h"

namespace prun {

struct Plugin {
  std::string name, path;
  prun_transport table{};  // the core's copy: functions that the plugin's shorter table lacks are null
};

// A NAME.so in a plugin directory, not loaded, with the contents of NAME.plugin.
struct PluginFile {
  std::string name, path;
  bool automatic = false;  // `auto` considers it
  bool host_memory = false, cuda_memory = false;
  bool local_only = false;
  bool encrypts = false;                 // between hosts, with its option encrypt=1
  std::vector<std::string> not_claimed;  // items of the conformance suite
};

// Returns plugins sorted by name. If two have one name, returns that of the first directory. Missing directories are
// skipped; a world-writable one throws usage_error.
std::vector<PluginFile> find_plugins(const std::vector<std::string>& dirs);

// Loads and checks a plugin. Throws Error(transport) with the file's name and one sentence per kind of fault.
Plugin load_plugin(const PluginFile& file);

// Returns the plugin of this name. Throws usage_error that lists the available names.
PluginFile find_named(std::string_view name, const std::vector<std::string>& dirs);
// Loads the plugin that find_named returns.
Plugin load_named(std::string_view name, const std::vector<std::string>& dirs);

// Parameters for opening and querying a plugin. The texts belong to `world`, which must outlive it.
struct OpenParams : prun_open_params {
  OpenParams(const WorldOptions& world, const std::string& plugin);
  OpenParams(const OpenParams&) = delete;
  OpenParams& operator=(const OpenParams&) = delete;

 private:
  std::string own_options_;  // the settings of WorldOptions::transport_options that apply to this plugin
};
// Returns the value of the last `name`.`key` in "key=value,NAME.key=value,..."; an empty `name` means no prefix.
std::optional<std::string> option_value(const std::string& options, std::string_view name, std::string_view key);
// Throws usage_error if a name before a key in "key=value,NAME.key=value,..." is not a plugin's.
void check_option_names(const std::string& options, const std::vector<std::string>& dirs);
// Also rejects keys and values that the named plugin would refuse, because a job that does not use the plugin would
// never check them. Loads it in a child process, not in the one that starts ranks. A plugin that cannot be loaded, or
// has no check_options, passes.
void check_options(const std::string& options, const std::vector<std::string>& dirs);

}  // namespace prun
