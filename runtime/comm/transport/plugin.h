// Finding and loading transports: a plugin is NAME.so in a plugin directory, and nothing is loaded that nobody asked
// for.
//
// Surprising fact: `auto` cannot ask a plugin what it is for without loading it (and with it NCCL, say), so a plugin
// that wants to be chosen says so in a small text file NAME.plugin beside it: auto, memory, local_only. What it does
// not claim to do (not_claimed) stands there, too.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm.h"

namespace prun {

struct Plugin {
  std::string name, path;
  prun_transport table{};  // ours: what the plugin's own table is too short for is zero
};

// A NAME.so that lies in a plugin directory, not loaded.
struct PluginFile {
  std::string name, path;
  bool automatic = false;  // the rest is from NAME.plugin; without one `auto` does not consider it
  bool host_memory = false, cuda_memory = false;
  bool local_only = false;
  std::vector<std::string> not_claimed;  // items of the conformance suite
};

// By name; of two with one name the first directory's. Directories that are not there are skipped; one that everybody
// can write to throws usage_error.
std::vector<PluginFile> find_plugins(const std::vector<std::string>& dirs);

// Loads and checks. Throws Error(transport), one sentence with the file's name for each way to be wrong.
// The host struct stays alive as long as the process does.
Plugin load_plugin(const PluginFile& file, const prun_host& host);

// The plugin of this name; usage_error with the names that are there.
PluginFile find_named(std::string_view name, const std::vector<std::string>& dirs);
// The same, loaded.
Plugin load_named(std::string_view name, const std::vector<std::string>& dirs, const prun_host& host);

// Of "key=value,shm.key=value,..." what is meant for this plugin: keys without a name before them, and its own.
std::string options_of(const std::string& name, const std::string& options);
// usage_error for a name before a key that is no plugin's.
void check_options(const std::string& options, const std::vector<std::string>& dirs);

}  // namespace prun
