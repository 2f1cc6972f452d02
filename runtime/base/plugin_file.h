// Plugin files of transports and devices: their folders, their permissions, loading.
#pragma once
#include <string>
#include <vector>

namespace prun {

// Returns the folders of an environment variable, separated by colons, then `folder` ("lib/prun/plugins") below the
// program's prefix.
std::vector<std::string> plugin_folders(const char* variable, const std::string& program, const std::string& folder);

// Throws usage_error if another user owns the file or folder, or may write to it or to a folder that contains it,
// because that user could run code as this one. Root, the owner of prun itself, system groups and groups of one user
// are trusted.
void refuse_writable_by_others(const std::string& path);

// Loads the file and returns the address of its one exported symbol. Never unloads the file, because its threads and
// thread-local destructors may outlive any owner. On failure returns null and sets `why` ("it has no symbol x").
void* load_entry(const std::string& path, const char* symbol, std::string& why);

}  // namespace prun
