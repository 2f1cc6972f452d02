// What bounds a kernel beside its operands' way from memory, for kernel_bench: how many floats a core can take through
// an instruction of each kind, in registers alone.
#pragma once

namespace prun {

// Adds a benchmark "rate/KIND" for each kind that this CPU's vectors have, whose counter `lanes` says how many floats
// a turn takes.
void register_vector_rates();

}  // namespace prun
