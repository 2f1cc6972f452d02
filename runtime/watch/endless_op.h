// Detects an op that does not end although no rank waits for it in a collective: in a job of one rank, or in a part of
// the program that other ranks do not need.
#pragma once
#include <optional>

#include "ir/program.h"
#include "watch/who_waits.h"

namespace prun {

struct Hang {
  Holdup holdup;
  double seconds = 0;  // without progress
};

// Returns a rank that has been in one op, or between ops, for longer than `limit_s` plus 20 times the op's duration on
// a slow core. Host ops, which wait for disks, have no limit. Times before `since_ns` do not count.
std::optional<Hang> endless_op(const Job& job, const Flight& flight, double limit_s, uint64_t since_ns);

}  // namespace prun
