// Runs a plan with all ranks of this machine and reads the cost of each op from their flight recorders.
//
// Ops are measured inside a step: with the cache contents left by the previous ops, concurrently with the other ranks.
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
  double wake_s = 0;  // delay from the end of an op to the start of an op on another stream that waits for it
};

// `settings`: arguments of plans/gpt.lua. Throws like a run.
Probe run_probe(const JobSpec& job, const std::map<std::string, std::string>& settings);

}  // namespace prun
