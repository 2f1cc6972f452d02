// Finds ranks that hold up a running job: stopped, hung or slow ones. Warns of them, and returns the failure of a hang.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "watch/rank_watch.h"
#include "watch/slow_ranks.h"
#include "watch/view.h"

namespace prun {

class Watchdog final : public View {
 public:
  // `limit_s`: seconds without progress after which the job counts as hung. `warn` receives a sentence for each
  // finding.
  Watchdog(double limit_s, std::function<void(const std::string&)> warn) : limit_s_(limit_s), warn_(std::move(warn)) {}
  // `ranks`: as Mirrors::open returns them.
  void begin(const RunningJob& job, std::vector<WatchedRank> ranks);
  void tick() override;
  // Node 0: returns the failure of a hung job, once. `command` runs the job again.
  std::optional<Failure> hung(const JobCommand& command);

  RankWatch* watch() { return watch_ ? &*watch_ : nullptr; }  // null before ranks have started
  const std::vector<WatchedRank>& ranks() const { return watch_->ranks(); }
  const std::vector<int>& slow() const { return slow_.ranks(); }

 private:
  double limit_s_;
  std::function<void(const std::string&)> warn_;
  const RunningJob* job_ = nullptr;
  std::optional<RankWatch> watch_;
  SlowRanks slow_;
  bool told_hang_ = false;
};

}  // namespace prun
