// The secret that the nodes of a job share: read once, and kept from every process that this one starts.
#pragma once
#include <string>

namespace prun {

// First of all in main: takes PRUN_SECRET out of the environment, so that no child inherits it and /proc/PID/environ
// does not show it.
void hide_secret();

// From --secret-file, else what PRUN_SECRET was, else "". Throws usage_error: no secret in the file, or others may
// read it.
std::string read_secret(const std::string& secret_file);

}  // namespace prun
