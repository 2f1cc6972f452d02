#pragma once
#include <string>

#include "exec/recorder.h"
#include "ir/program.h"

namespace prun {

// Returns what a rank is doing, from its recorder: "step 12: all_reduce 3 of axis dp (block2), plans/a.lua:14", or
// "joining: socket"; "" if the recorder does not tell.
std::string where_is(const Job& job, int rank, const RecorderHeader& recorder);

}  // namespace prun
