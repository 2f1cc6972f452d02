// A user's own folder for what processes of one host share for a moment: sockets and secrets of jobs that begin.
// $XDG_RUNTIME_DIR/prun, else /tmp/prun-UID; nobody else can look into it.
#pragma once
#include <string>

namespace prun {

// Makes what is missing. Throws Error(join) where it belongs to somebody else, or others can enter it.
std::string runtime_folder();

// A folder below it, made with mode 0700 like it.
std::string runtime_folder(const std::string& name);

}  // namespace prun
