// Step times on a cluster whose devices vary from step to step: each rank draws its slowness for each step.
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

// Returns the quantiles of `steps` consecutive steps; every rank is simulated.
StepTimes sample_steps(const Job& job, const simulate::Cluster& cluster, int steps, uint64_t seed);

}  // namespace prun
