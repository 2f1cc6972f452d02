// Runs a plan with all ranks of this machine and takes from their flight recorders what each op has cost.
//
// Ops are measured where they stand in a step: with the caches as the ops before leave them, beside the other ranks.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "calibrate/transfers.h"
#include "job/job_spec.h"
#include "simulate/fit.h"

namespace prun {

struct Probe {
  std::vector<OpSample> ops;
  std::vector<TransferSample> transfers;
  double wake_s = 0;  // from the end of an op to the start of one that waits for it on another stream
};

// `settings`: of plans/gpt.lua. Throws what a run throws.
Probe run_probe(const JobSpec& job, const std::map<std::string, std::string>& settings);

}  // namespace prun
