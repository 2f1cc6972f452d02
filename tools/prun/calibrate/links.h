// Measures the collectives and messages of each transport of this machine with prun bench.
#pragma once
#include <string>
#include <vector>

#include "job/job_spec.h"
#include "simulate/cluster.h"

namespace prun {

// A transport as named in calibration files, with its options.
struct CalibratedTransport {
  std::string name, transport, options;
};
// Returns the transports among shm, socket, socket-tcp and ucx that are installed.
std::vector<CalibratedTransport> calibrated_transports(const JobSpec& job);

// Measures between `job.launch.nproc` ranks, at least 2. `seconds`: approximate time limit.
simulate::LinkModel measure_link(const JobSpec& job, const CalibratedTransport& transport, double seconds);

}  // namespace prun
