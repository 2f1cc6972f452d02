// The one clock of everything recorded: CLOCK_MONOTONIC, which all processes of a host share.
#pragma once
#include <cstdint>
#include <ctime>

namespace prun {

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace prun
