// Suggests changes of a plan's own arguments with which it would fit in a cluster's memory.
#pragma once
#include <string>

#include "job/job_spec.h"
#include "simulate/cluster.h"

namespace prun {

// Returns "--set tp=8 --set recompute=full would fit, at 1.2 s a step", or another suggestion. Estimates a few dozen
// settings.
std::string what_would_fit(const JobSpec& spec, const simulate::Cluster& cluster);

}  // namespace prun
