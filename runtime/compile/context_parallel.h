// Context parallelism: the tokens of each sample spread over an axis.
#pragma once
#include "compile/compile_state.h"

namespace prun {

// Shapes for a rank's tokens, and attention over the ring.
void split_tokens(CompileState& state);

}  // namespace prun
