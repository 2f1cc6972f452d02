// What a plan's step takes, about, from a few of its stages, microbatches and layers: cheap enough for a thousand
// settings. prun sim's own answer is exact and takes ten times as long.
#pragma once
#include "job/job_spec.h"
#include "simulate/cluster.h"

namespace prun {

struct Estimate {
  double step_s = 0;
  double peak_bytes = 0, memory_bytes = 0;  // of the rank that comes nearest to its device's memory
  double effort_s = 0;  // of processors, what the estimate has taken: a simulation's is about in proportion
};

// Equal for settings that record the same plan, or not `whole` the same with few layers. Throws Error(plan) for those
// with which there is none.
size_t plan_digest(const JobSpec& spec, bool whole);

// Throws as plan_digest.
Estimate estimate_plan(const JobSpec& spec, const simulate::Cluster& cluster);

}  // namespace prun
