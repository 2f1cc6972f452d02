// Memory of the device and pinned memory of the host.
#pragma once
#include "substitute.h"

namespace substitute {

// Ends the process if something was written outside an allocation; `when` is the end of the message.
void check_guards(const char* when);
// Takes the device memory of a process's context (PRUN_SUBSTITUTE_CONTEXT_MIB), once.
void make_context(int device);

}  // namespace substitute
