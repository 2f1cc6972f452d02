// Steps of a cluster whose devices are not equally fast each time: each rank draws how slow it is, step by step.
#pragma once
#include <cstdint>

#include "ir/program.h"
#include "simulate/cluster.h"

namespace prun {

struct StepTimes {
  int steps = 0;
  double median_s = 0, p90_s = 0, p99_s = 0;
};

bool has_jitter(const simulate::Cluster& cluster);

// Of so many steps, one after another; every rank is simulated by itself.
StepTimes sample_steps(const Job& job, const simulate::Cluster& cluster, int steps, uint64_t seed);

}  // namespace prun
