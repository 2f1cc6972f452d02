// prun plugins --explain.
#pragma once
#include "commands.h"

namespace prun {

// For --nproc ranks a host and --nnodes hosts, two of each if there are less. Throws as choose_interface.
int explain_plugins(const Options& options);

}  // namespace prun
