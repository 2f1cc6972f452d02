// A user's own folder for sockets and secrets that processes of one host share while a job begins:
// $XDG_RUNTIME_DIR/prun, otherwise /tmp/prun-UID, mode 0700.
#pragma once
#include <string>

namespace prun {

// Returns this folder, created if missing. Throws Error(join) if it belongs to another user or others can enter it.
std::string runtime_folder();

// Returns a subfolder, also created with mode 0700.
std::string runtime_folder(const std::string& name);

}  // namespace prun
