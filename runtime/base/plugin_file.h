// Plugin files of transports and devices: their folders, who may write to them, loading.
#pragma once
#include <string>
#include <vector>

namespace prun {

// The folders of an environment variable, separated by colons, then `folder` ("lib/prun/plugins") below this program's
// prefix.
std::vector<std::string> plugin_folders(const char* variable, const std::string& program, const std::string& folder);

// Throws usage_error for a file or folder that others may write to, in it or in a folder around it, and for one that
// belongs to another user: whoever can write there can run code as this user. Root, the owner of prun itself, system
// groups and groups of one user are trusted.
void refuse_writable_by_others(const std::string& path);

// dlopen, and the address of its one exported symbol. Never unloaded: it may own threads, and thread-local destructors
// that outlive it. `why` is set, and null returned, when it cannot be loaded or lacks the symbol ("it has no symbol
// x").
void* load_entry(const std::string& path, const char* symbol, std::string& why);

}  // namespace prun
