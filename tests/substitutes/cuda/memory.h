// Memory of the device and pinned memory of the host.
#pragma once
#include "substitute.h"

namespace substitute {

// Dies where something has been written beside an allocation; `when` says after what.
void check_guards(const char* when);
// What a process takes of a device by using it (PRUN_SUBSTITUTE_CONTEXT_MIB), once.
void make_context(int device);

}  // namespace substitute
