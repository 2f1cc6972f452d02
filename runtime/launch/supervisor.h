// The launcher's loop: starts this node's ranks, serves them and the other launchers, ends them.
#pragma once
#include <memory>
#include <vector>

#include "launch/coordination.h"
#include "launch/launch.h"
#include "launch/topology.h"

namespace prun {

// Runs this node's ranks. `start` holds the fields common to all ranks (job, job_hash, job_id, job_secret). Returns the
// exit code of the job after the last local process has ended and the failure, if any, is printed.
int supervise(const LaunchOptions& options, const Topology& topology, const RankStart& start,
              const std::function<int(const RankStart&)>& rank_main, Coordination& coordination,
              LaunchObserver& observer);

class Reception;

// Nodes that arrive while the job runs without them: they wait until it has committed, then all nodes begin again.
class LateNodes {
 public:
  using Clock = std::chrono::steady_clock;

  // `reception` null: all nodes take part, and every function is a no-op.
  LateNodes(std::shared_ptr<Reception> reception, const LaunchOptions& options, LaunchObserver& observer);
  Clock::time_point due() const { return reception_ ? next_look_ : Clock::time_point::max(); }
  bool look(Clock::time_point now);  // true: nodes wait, and the job has to end its attempt for them
  void end(const Verdict& verdict);  // notifies the waiting nodes
  std::vector<int> descriptors() const;

 private:
  void greet(size_t node);

  std::shared_ptr<Reception> reception_;
  const LaunchOptions& options_;
  LaunchObserver& observer_;
  Clock::time_point began_ = Clock::now(), next_look_ = Clock::now();
  bool wait_ = false;  // nodes are waiting
};

}  // namespace prun
