// What every pass has to leave behind, checked between passes in debug builds.
#pragma once
#include <string_view>

#include "compile/compile_state.h"

namespace prun {

// Aborts with the pass's name when the graph or the program that it made is not well-formed. Verify proves what a
// finished program means; this finds the pass that broke it.
void check_invariants(const CompileState& state, std::string_view pass);

}  // namespace prun
