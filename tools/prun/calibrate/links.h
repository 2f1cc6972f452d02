// What each transport of this machine takes for collectives and messages, by prun bench's own measurement.
#pragma once
#include <string>
#include <vector>

#include "job/job_spec.h"
#include "simulate/cluster.h"

namespace prun {

// A transport as calibrated files name it, with the options that make it so.
struct CalibratedTransport {
  std::string name, transport, options;
};
// Those that are installed here: shm, socket, socket-tcp, ucx.
std::vector<CalibratedTransport> calibrated_transports(const JobSpec& job);

// Between `job.launch.nproc` ranks, at least 2. `seconds`: about how long it may take.
simulate::LinkModel measure_link(const JobSpec& job, const CalibratedTransport& transport, double seconds);

}  // namespace prun
