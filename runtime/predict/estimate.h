// Estimates a plan's step from a few of its stages, microbatches and layers: cheap enough for a thousand settings. prun
// sim is exact and takes ten times as long.
#pragma once
#include "job/job_spec.h"
#include "simulate/cluster.h"

namespace prun {

struct Estimate {
  double step_s = 0;
  double peak_bytes = 0, memory_bytes = 0;  // arena and device memory of the rank with the highest ratio of the two
  double effort_s = 0;  // processor time of the estimate; that of a simulation is roughly proportional
};

// Returns a hash that is equal for settings that record the same plan (with few layers unless `whole`). Throws
// Error(plan) for settings without a plan.
size_t plan_digest(const JobSpec& spec, bool whole);

// Throws like plan_digest.
Estimate estimate_plan(const JobSpec& spec, const simulate::Cluster& cluster);

}  // namespace prun
