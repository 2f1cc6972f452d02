// Bodies of ranks, shared by suites of one host and of several.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "tests/conformance/suite.h"

namespace prun::testing {

// Runs an in-place all_reduce of `count` ones in f32.
void all_reduce(Communicator& group, int64_t count, bool rank_order = false);

// Runs all_gather_v and all_to_all_v over all ranks, with counts that are multiples of `scale` and 0 for some members.
// Returns "" or the error.
std::string counts_per_member(Rank& rank, int64_t scale);

// Runs `start`, which waits for a rank that never comes, twice, and aborts it from another thread. Returns "" or the
// unexpected end. An immediate return is allowed, because a transport may connect at the first send.
std::string aborted_in(World& world, const std::function<void()>& start);

// All ranks except `absent` begin an all_reduce of `count` and abort it. Returns "" or the unexpected end.
std::string aborted_under_way(Rank& rank, int absent, int64_t count);

}  // namespace prun::testing
