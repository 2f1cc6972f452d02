// Of a plan that does not fit in a cluster's memory: with which of its own arguments it would.
#pragma once
#include <string>

#include "job/job_spec.h"
#include "simulate/cluster.h"

namespace prun {

// "--set tp=8 --set recompute=full would fit, at 1.2 s a step", or what else to try. Estimates a few dozen settings.
std::string what_would_fit(const JobSpec& spec, const simulate::Cluster& cluster);

}  // namespace prun
