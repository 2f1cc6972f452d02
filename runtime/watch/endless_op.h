// An op that does not end although no rank waits for it in a collective: of a job of one rank, or of a part of the
// program that others do not need.
#pragma once
#include <optional>

#include "ir/program.h"
#include "watch/who_waits.h"

namespace prun {

struct Hang {
  Holdup holdup;
  double seconds = 0;  // for which nothing has moved
};

// The rank that has computed one op, or has been between ops, for longer than `limit_s` and 20 times what the op takes
// on a slow core. Ops of the host, which wait for disks, have no limit. Times before `since_ns` do not count.
std::optional<Hang> endless_op(const Job& job, const Flight& flight, double limit_s, uint64_t since_ns);

}  // namespace prun
