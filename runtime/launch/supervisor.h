// The launcher's loop: starts this node's ranks, listens to them and to the other launchers, ends them.
#pragma once
#include <memory>
#include <vector>

#include "launch/coordination.h"
#include "launch/launch.h"
#include "launch/topology.h"

namespace prun {

// `start` holds what all ranks share (job, job_hash, job_id, job_secret). Returns the exit code of the job after the
// last local process has ended and the failure, if any, has been told.
int supervise(const LaunchOptions& options, const Topology& topology, const RankStart& start,
              const std::function<int(const RankStart&)>& rank_main, Coordination& coordination,
              LaunchObserver& observer);

class Reception;

// Nodes that come while the job runs without them: they wait until it has committed, and then all begin again.
class LateNodes {
 public:
  using Clock = std::chrono::steady_clock;

  // `reception` null: all nodes take part, and nothing here does anything.
  LateNodes(std::shared_ptr<Reception> reception, const LaunchOptions& options, LaunchObserver& observer);
  Clock::time_point due() const { return reception_ ? next_look_ : Clock::time_point::max(); }
  bool look(Clock::time_point now);  // true: nodes wait, and the job is to end its attempt for them
  void end(const Verdict& verdict);  // tells those that wait
  std::vector<int> descriptors() const;

 private:
  void greet(size_t node);

  std::shared_ptr<Reception> reception_;
  const LaunchOptions& options_;
  LaunchObserver& observer_;
  Clock::time_point began_ = Clock::now(), next_look_ = Clock::now();
  bool wait_ = false;  // some do
};

}  // namespace prun
