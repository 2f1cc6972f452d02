// Finding and loading transports: a plugin is NAME.so in a plugin directory, and is loaded only when it is needed.
//
// `auto` cannot ask a plugin what it is for without loading it (and with it NCCL, say). So a plugin that wants to be
// chosen says so in a text file NAME.plugin beside it: auto, memory, local_only, and what it does not claim to do.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm.h"

namespace prun {

struct Plugin {
  std::string name, path;
  prun_transport table{};  // ours: what the plugin's own table is too short for is zero
};

// A NAME.so in a plugin directory, not loaded, with what NAME.plugin says.
struct PluginFile {
  std::string name, path;
  bool automatic = false;  // `auto` considers it
  bool host_memory = false, cuda_memory = false;
  bool local_only = false;
  bool encrypts = false;                 // between hosts, with its option encrypt=1
  std::vector<std::string> not_claimed;  // items of the conformance suite
};

// By name; of two with one name the first directory's. Directories that are not there are skipped; one that everybody
// can write to throws usage_error.
std::vector<PluginFile> find_plugins(const std::vector<std::string>& dirs);

// Loads and checks. Throws Error(transport), one sentence with the file's name for each way to be wrong.
Plugin load_plugin(const PluginFile& file);

// The plugin of this name; usage_error with the names that are there.
PluginFile find_named(std::string_view name, const std::vector<std::string>& dirs);
// The same, loaded.
Plugin load_named(std::string_view name, const std::vector<std::string>& dirs);

// What a plugin is opened and asked with. Its texts are those of `world`, which outlives it.
struct OpenParams : prun_open_params {
  OpenParams(const WorldOptions& world, const std::string& plugin);
  OpenParams(const OpenParams&) = delete;
  OpenParams& operator=(const OpenParams&) = delete;

 private:
  std::string own_options_;  // those of WorldOptions::transport_options that are meant for this plugin
};
// Returns the value of the last `name`.`key` in "key=value,NAME.key=value,..."; an empty `name` means no prefix.
std::optional<std::string> option_value(const std::string& options, std::string_view name, std::string_view key);
// usage_error for a name before a key in "key=value,NAME.key=value,..." that is no plugin's.
void check_option_names(const std::string& options, const std::vector<std::string>& dirs);
// The same, also for keys and values behind a name that this plugin would refuse: the job may not use it, and then
// nobody else asks it. It is loaded in a child process, not in the one that starts ranks. A plugin that cannot be
// loaded, or cannot be asked, says nothing.
void check_options(const std::string& options, const std::vector<std::string>& dirs);

}  // namespace prun
