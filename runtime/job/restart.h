// --max-restarts and --min-ranks: whether a failed job restarts, the number of its ranks, and the commit that it
// resumes.
#pragma once
#include <string>
#include <vector>

#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct JobSpec;
class Launch;

struct RestartSettings {
  int most = 0;       // --max-restarts, for the job on all its nodes
  int min_ranks = 0;  // --min-ranks; 0: all ranks are required
};

// Throws usage_error for options that do not go together.
void check_restart_options(const JobSpec& spec);

// Follows one job through its attempts:
//
//     event                                     next attempt                               spends a restart
//     a failure that may pass (failure.h)       all ranks that have joined                 yes
//     the same with no restart left,            fewer ranks, at least --min-ranks          no
//     or a node does not join again
//     a node returns, after a commit            all ranks that have joined                 no
class Restarts {
 public:
  explicit Restarts(JobSpec& spec);  // construct before checkpoints are settled
  // Node 0, after the nodes have joined: resumes from their memory if that is newer than the disk, and compiles for the
  // largest number of their ranks that the plan can use. If the plan fits no number, throws the error for the largest
  // one.
  Job build(Launch& launch, Plan& plan);
  void begin(const Job& job);  // records how the attempt begins, once its first sample is settled
  // Prepares another attempt after a failure or, with `grows`, to admit late nodes: settles the checkpoint to resume
  // from. Throws like settle_checkpoints.
  void begin_again(bool grows);
  // Records from the ended attempt the steps without an update, and the step in which a number was not finite; -1 = it
  // ended for another reason.
  void remember(const std::vector<int64_t>& skipped_steps, int64_t not_finite_step);
  void allow();  // sets the launch options of this attempt: after `build`, once commits are settled
  int done() const { return restarts_ + shrunk_ + grown_; }
  std::string words() const;  // for the user: the attempt that begins, "" for the first

 private:
  void leave_out_batches();
  void take_newest_kept(const std::vector<std::string>& inventories);
  std::vector<std::string> commits() const;  // in memory and on disk

  JobSpec& spec_;
  std::string resume_;  // --resume as typed
  std::string trace_;
  int restarts_ = 0, shrunk_ = 0, grown_ = 0;
  std::vector<int64_t> skipped_steps_;  // skipped steps of all attempts, up to the resumed step
  int64_t skipped_before_ = 0;          // their number in the checkpoint that the job began with
  int64_t not_finite_step_ = -1;        // step whose batch the next attempt skips; -1 = none
  std::string left_out_;                // " without ..." for the message, or ""
  struct Attempt {
    RunPosition begin;
    int64_t batch = 0;  // samples per step
    int64_t samples_before(int64_t step) const { return begin.samples + (step - begin.step) * batch; }
    std::string text(int64_t first, int64_t end) const;  // the samples first, ..., end - 1
  };
  Attempt last_;        // the previous attempt
  bool grows_ = false;  // the next attempt admits a node
  int ranks_ = 0;       // ranks of the previous attempt
  int most_ranks_ = 0;  // upper bound of ranks of the next attempt; 0 = all
};

}  // namespace prun
