// --max-restarts and --min-ranks: whether a job that failed begins again, on how many ranks, and from which commit.
#pragma once
#include <string>
#include <vector>

#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct JobSpec;
class Launch;

struct RestartSettings {
  int most = 0;       // --max-restarts, of the job on all its nodes
  int min_ranks = 0;  // --min-ranks; 0: a job goes on with all its ranks or not at all
};

// Throws usage_error for options that do not go together.
void check_restart_options(const JobSpec& spec);

// Follows one job through its attempts. A failure that may pass (launch/failure.h) spends a restart, with as many ranks
// as have joined. Once none is left, or where a node stays away, the job goes on with fewer ranks, down to --min-ranks.
// A node that comes back is taken in after a commit, which spends nothing.
class Restarts {
 public:
  explicit Restarts(JobSpec& spec);  // before checkpoints are settled
  // Node 0, once the nodes have joined: goes on from what they have in memory, where that is newer than what is on the
  // disk; compiles for as many of their ranks as the plan can use, at most as many as are
  // left. Throws what the compiler says of the most ranks where the plan fits no number of them.
  Job build(Launch& launch, Plan& plan);
  void begin(const Job& job);  // records how the attempt begins, once its first sample is settled
  // Another attempt follows, as the last one has failed or, `grows`, has made room for nodes that have come: settles
  // what to resume from. Throws as settle_checkpoints.
  void begin_again(bool grows);
  // Records two facts of the attempt that has ended: the steps that updated nothing, and the step in which a number was
  // not finite; -1 = another cause ended it.
  void remember(const std::vector<int64_t>& skipped_steps, int64_t not_finite_step);
  void allow();  // what the launchers have to know of this attempt: after `build`, once commits are settled
  int done() const { return restarts_ + shrunk_ + grown_; }
  std::string words() const;  // for the user: which attempt begins, "" of the first

 private:
  void leave_out_batches();
  void take_newest_kept(const std::vector<std::string>& inventories);
  std::vector<std::string> commits() const;  // to memory and to the disk

  JobSpec& spec_;
  std::string resume_;  // as typed
  std::string trace_;
  int restarts_ = 0, shrunk_ = 0, grown_ = 0;
  std::vector<int64_t> skipped_steps_;  // of all attempts, as far as their updates stand
  int64_t skipped_before_ = 0;          // in the checkpoint that the job began with
  int64_t not_finite_step_ = -1;        // step whose batch the next attempt skips; -1 = none
  std::string left_out_;                // "", or which
  struct Attempt {
    RunPosition begin;
    int64_t batch = 0;  // samples per step
    int64_t samples_before(int64_t step) const { return begin.samples + (step - begin.step) * batch; }
    std::string text(int64_t first, int64_t end) const;  // the samples first, ..., end - 1
  };
  Attempt last_;        // the previous attempt
  bool grows_ = false;  // the next attempt takes in a node
  int ranks_ = 0;       // ranks of the previous attempt
  int most_ranks_ = 0;  // upper bound of ranks of the next attempt; 0 = all
};

}  // namespace prun
