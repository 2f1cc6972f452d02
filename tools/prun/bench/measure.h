// Timing: a sample is k calls between two barriers and lasts as long as its slowest rank; a row is the median of
// samples. The two sides are sampled alternately, so that disturbances affect both.
#pragma once
#include <functional>
#include <vector>

#include "bench/settings.h"
#include "comm/comm.h"

namespace prun {

struct Timing {
  double median_s = 0, least_s = 0, most_s = 0;
  int samples = 0, calls = 0;  // calls per sample
};

struct Timed {
  Communicator* group;
  std::function<void()> call;
  std::function<void()> wait;  // blocks until all calls have ended
};

// Times the sides alternately. Collective over each side's group.
std::vector<Timing> time_in_turn(const std::vector<Timed>& sides, const BenchSettings& settings);

// All-reduce one value over the group, by maximum and by sum.
double slowest_of(Communicator& group, double value);
int64_t sum_of(Communicator& group, int64_t value);

}  // namespace prun
