// The launcher's loop: starts this node's ranks, listens to them and to the other launchers, ends them.
#pragma once
#include "launch/coordination.h"
#include "launch/launch.h"
#include "launch/topology.h"

namespace prun {

// `start` holds what all ranks share (job, job_hash, job_id, job_secret). Returns the exit code of the job after the
// last local process has ended and the failure, if any, has been told.
int supervise(const LaunchOptions& options, const Topology& topology, const RankStart& start,
              const std::function<int(const RankStart&)>& rank_main, Coordination& coordination,
              LaunchObserver& observer);

}  // namespace prun
