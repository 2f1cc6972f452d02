// The launcher's side of a feed: it waits for the feeder, checks its inputs, and gives it the position of the run.
#pragma once
#include <memory>
#include <string>

#include "data/feed_ring.h"
#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct JobSpec;

// The feed of a job's training data, over all attempts. Does nothing if the plan has none.
class JobFeed {
 public:
  // Waits for the feeder, and reports that on standard error. Throws Error(feed) after --timeout, plan_error if its
  // batches differ from the plan's, usage_error on several nodes.
  void await(const Plan& plan, const JobSpec& spec);
  std::string fingerprint() const { return ring_ == nullptr ? "" : ring_->fingerprint(); }
  // Lets the feeder begin at the job's position.
  void attach(const Job& job, const JobSpec& spec);

 private:
  std::unique_ptr<FeedRing> ring_;
};

}  // namespace prun
