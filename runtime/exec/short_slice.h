// A thread that works a little at a time beside one that computes.
#pragma once

namespace prun {

// Asks the system for short slices of time: from Linux 6.12 on, a thread with a shorter slice than the one that holds
// the core gets it as soon as it wakes, instead of when the other's slice is over. Its share of the core stays
// the same. What the system refuses, or is too old for, changes nothing.
void take_short_slices();

}  // namespace prun
