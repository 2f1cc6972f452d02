// What communication sends, by the program alone.
#pragma once
#include "ir/program.h"

namespace prun {

// Bytes that one rank sends in one op, as a ring would: all_gather and reduce_scatter (N-1)/N of the whole buffer,
// all_reduce twice that, rooted collectives at most the buffer (STRATEGIES: "Bytes sent per rank").
double wire_bytes(const Program& program, const Op& op);

}  // namespace prun
