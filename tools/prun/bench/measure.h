// The timing rule: a sample is k calls between two barriers, its time that of the slowest rank; the median of samples
// counts. Two sides are measured in turn, sample by sample, so that what disturbs one disturbs the other.
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

// The largest, or the sum, of all members' values.
double slowest_of(Communicator& group, double value);
int64_t sum_of(Communicator& group, int64_t value);

}  // namespace prun
