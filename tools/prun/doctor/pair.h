// Latency and bandwidth between two members of a group.
#pragma once
#include "comm/comm.h"

namespace prun::doctor {

inline constexpr int64_t kPairBytes = int64_t{4} << 20;  // of the large message

// Called by both members, and by no other; `buffer` has kPairBytes. About a third of a second.
double pair_latency(Communicator& group, int one, int other, char* buffer);    // s, one way, 8 bytes, median
double pair_bandwidth(Communicator& group, int one, int other, char* buffer);  // bytes/s, one way, kPairBytes, median

// How far the other's clock is ahead, in seconds, as member `one` sees it; `error`: by how much that may be wrong.
struct ClockOffset {
  double seconds = 0, error = 0;
};
ClockOffset clock_offset(Communicator& group, int one, int other, char* buffer);

}  // namespace prun::doctor
