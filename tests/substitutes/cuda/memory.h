// Memory of the device and pinned memory of the host.
#pragma once
#include "substitute.h"

namespace substitute {

// Dies where something has been written beside an allocation; `when` says after what.
void check_guards(const char* when);

}  // namespace substitute
