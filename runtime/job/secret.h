// The secret that the nodes of a job share: read once, and hidden from all child processes.
#pragma once
#include <string>

namespace prun {

// Call first in main: removes PRUN_SECRET from the environment, so that no child inherits it and /proc/PID/environ does
// not show it.
void hide_secret();

// Returns the secret from --secret-file, otherwise the former PRUN_SECRET, otherwise "". Throws usage_error if the file
// is empty or accessible to others.
std::string read_secret(const std::string& secret_file);

}  // namespace prun
