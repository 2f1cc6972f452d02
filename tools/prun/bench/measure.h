// Timing: a sample is k calls between two barriers and takes as long as its slowest rank; a row is the median of
// samples. Two sides are sampled in turn, so that disturbances hit both.
#pragma once
#include <functional>
#include <vector>

#include "bench/settings.h"
#include "comm/comm.h"

namespace prun {

struct Timing {
  double median_s = 0, least_s = 0, most_s = 0;
  int samples = 0, calls = 0;  // of a sample
};

struct Timed {
  Communicator* group;
  std::function<void()> call;
  std::function<void()> wait;  // until all calls have ended
};

// Collective over each side's group.
std::vector<Timing> time_in_turn(const std::vector<Timed>& sides, const BenchSettings& settings);

// Reduce one value over the group.
double slowest_of(Communicator& group, double value);
int64_t sum_of(Communicator& group, int64_t value);

}  // namespace prun
