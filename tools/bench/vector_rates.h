// The arithmetic bound of kernels, for kernel_bench: the number of floats per second that a core can pass through each
// kind of instruction, in registers alone.
#pragma once

namespace prun {

// Registers a benchmark "rate/KIND" for each kind that this CPU's vectors support; its counter `lanes` is the number of
// floats per iteration.
void register_vector_rates();

}  // namespace prun
