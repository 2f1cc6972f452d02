// What ranks do in suites of one host and of several.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "tests/conformance/suite.h"

namespace prun::testing {

// An all_reduce in place of `count` ones in f32.
void all_reduce(Communicator& group, int64_t count, bool rank_order = false);

// all_gather_v and all_to_all_v of all ranks, whose counts are multiples of `scale` and for some members 0. "" or what
// came out wrong.
std::string counts_per_member(Rank& rank, int64_t scale);

// `start` waits for a rank that never comes, until another thread aborts, twice. "" or what else ended it; to be
// through at once is no mistake (a transport may connect when it first sends).
std::string aborted_in(World& world, const std::function<void()>& start);

// The ranks but one begin an all_reduce of `count`, which `absent` stays away from, and abort it. "" or how it ended.
std::string aborted_under_way(Rank& rank, int absent, int64_t count);

}  // namespace prun::testing
