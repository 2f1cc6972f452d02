// Identifies this machine: the kernel's boot id, which differs between machines and boots except for clones of a
// running virtual machine.
#pragma once
#include <string>

namespace prun {

// Returns PRUN_HOST_ID with '_' for spaces if it is set, otherwise the boot id; "" = unknown.
std::string machine_id();
bool machine_id_is_given();  // PRUN_HOST_ID is set

}  // namespace prun
