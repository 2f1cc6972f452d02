// A rank is a fork of its launcher and starts in milliseconds, so each attempt starts new ranks. The launchers of the
// remaining nodes survive a failure, with their commits in memory.
#include "job/restart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/history.h"
#include "job/build.h"
#include "job/job_spec.h"
#include "job/replicas.h"
#include "launch/launch.h"

namespace prun {
namespace {

constexpr double kRejoinSeconds = 3;  // time that a job that may run without a node waits for it
// A node that repeatedly joins and fails must not consume the job's time: the first is admitted at once, the next after
// kGrowAgainSeconds, each further one after twice the previous time.
constexpr double kGrowAgainSeconds = 30, kGrowAgainMost = 1800;

// Returns the checkpoints that `run` committed to disk, newest first, including damaged ones, which may be its own.
std::vector<std::string> commits_of(const std::string& run, const std::string& folder) {
  std::vector<std::string> ours;
  if (folder.empty() || !checkpoint::is_used(folder)) return ours;
  try {
    std::optional<std::string> each = checkpoint::newest(folder).checkpoint;
    for (; each; each = checkpoint::before(*each)) try {
        if (checkpoint::read_index(*each).lineage.run != run) break;
        ours.push_back(*each);
      } catch (const Error&) {
        ours.push_back(*each);
      }
  } catch (const Error&) {  // there is none
  }
  return ours;
}

}  // namespace

void check_restart_options(const JobSpec& spec) {
  const RestartSettings& s = spec.restart;
  const int ranks = spec.ranks();
  if (s.min_ranks > ranks)
    throw usage_error(
        fmt::format("--min-ranks {} is more than the {} of this job", s.min_ranks, counted(ranks, "rank")));
}

Restarts::Restarts(JobSpec& spec) : spec_(spec), resume_(spec.checkpoint.resume), trace_(spec.watch.trace) { allow(); }

// Sets the launch options of the next attempt.
void Restarts::allow() {
  const RestartSettings& s = spec_.restart;
  const bool shrinks = s.min_ranks > 0 && (ranks_ == 0 || ranks_ > s.min_ranks);
  spec_.launch.begins_again = restarts_ < s.most || shrinks;
  spec_.launch.rolls_back = spec_.non_finite == "rollback" && restarts_ < s.most;
  spec_.launch.min_ranks = s.min_ranks;
  spec_.launch.patience_s = done() > 0 ? kRejoinSeconds : spec_.launch.join_timeout_s;
  const CheckpointSettings& checkpoint = spec_.checkpoint;
  const bool commits = !checkpoint.folder.empty() || !checkpoint.memory.empty();
  spec_.launch.takes_nodes_after_s = !commits ? -1
                                     : grown_ == 0
                                         ? 0
                                         : std::min(kGrowAgainSeconds * std::exp2(grown_ - 1), kGrowAgainMost);
}

Job Restarts::build(Launch& launch, Plan& plan) {
  if (done() == 0) skipped_before_ = spec_.checkpoint.begin.skipped_steps;
  take_newest_kept(launch.inventories());
  leave_out_batches();
  const int all = spec_.ranks();
  const int most = most_ranks_ > 0 ? std::min(most_ranks_, launch.ranks()) : launch.ranks();
  const int least = most < all ? std::max(spec_.restart.min_ranks, 1) : most;
  std::optional<Error> first;
  for (int ranks = most; ranks >= least; --ranks) try {
      Job job = build_job(spec_, ranks, &plan);
      launch.use_ranks(ranks);
      ranks_ = ranks;
      allow();
      return job;
    } catch (const Error& error) {  // a mesh or a batch that this number does not divide, or too little memory
      if (!first) first = error;
    }
  throw *first;
}

void Restarts::begin(const Job& job) {
  const Program& program = job.classes.front();
  last_ = {program.schedule.begin, program.step().data.global_batch};
}

void Restarts::begin_again(bool grows) {
  grows_ = grows;
  if (grows && spec_.launch.node_rank == 0) {
    ++grown_;
    most_ranks_ = 0;
  } else if (restarts_ < spec_.restart.most || spec_.launch.node_rank > 0) {  // node 0 keeps the count
    ++restarts_;
  } else {
    ++shrunk_;
    most_ranks_ = ranks_ - 1;
  }
  CheckpointSettings& checkpoint = spec_.checkpoint;
  const RunPosition before = std::exchange(checkpoint.begin, {});
  checkpoint.resumes = false;
  checkpoint.resume = resume_;
  settle_checkpoints(checkpoint, spec_.launch.node_rank == 0, commits());
  checkpoint.begin.left_out = before.left_out;  // applies also to commits from before the decision
  checkpoint.begin.restarts = before.restarts + 1;
  spec_.watch.metrics.resumes = true;
  spec_.watch.metrics.overwrite = false;
  if (!trace_.empty()) {  // one file per attempt, so that none is overwritten
    std::filesystem::path name(trace_);
    name.replace_extension(fmt::format("restart{}{}", done(), name.extension().string()));
    spec_.watch.trace = name.string();
  }
  allow();
}

void Restarts::remember(const std::vector<int64_t>& skipped_steps, int64_t not_finite_step) {
  skipped_steps_.insert(skipped_steps_.end(), skipped_steps.begin(), skipped_steps.end());
  not_finite_step_ = spec_.non_finite == "rollback" ? not_finite_step : -1;
}

// Skips the batches from the first repeated step to the failed one, so that none of the samples before the failure is
// seen again.
void Restarts::leave_out_batches() {
  left_out_.clear();
  RunPosition& at = spec_.checkpoint.begin;
  const int64_t failed = std::exchange(not_finite_step_, -1);
  std::erase_if(skipped_steps_, [&](int64_t step) { return step >= at.step; });
  if (failed < at.step) return;
  const int64_t begin = at.left_out.sample_of(at.samples);
  const int64_t end = at.left_out.sample_of(last_.samples_before(failed + 1) - 1) + 1;
  at.left_out.add(begin, end);
  left_out_ = " without " + last_.text(begin, end);
}

// Counts in batches if all batches had one size, otherwise in samples.
std::string Restarts::Attempt::text(int64_t first, int64_t end) const {
  if (batch > 0 && begin.samples == begin.step * batch && first % batch == 0 && end % batch == 0)
    return run_text("batch", "batches", first / batch, end / batch);
  return run_text("sample", "samples", first, end);
}

void Restarts::take_newest_kept(const std::vector<std::string>& inventories) {
  CheckpointSettings& checkpoint = spec_.checkpoint;
  checkpoint.kept.clear();
  if (done() == 0) return;
  const std::optional<checkpoint::KeptCommit> newest = newest_kept(inventories);
  if (!newest || newest->position.step < (checkpoint.resumes ? checkpoint.begin.step : -1)) return;
  checkpoint.kept = newest->name;
  checkpoint.resumes = true;
  // The launcher's state is newer than the commit's: the steps that all ranks skipped, and the samples skipped since.
  const RunPosition before = std::exchange(checkpoint.begin, newest->position);
  checkpoint.begin.left_out = before.left_out;
  checkpoint.begin.restarts = before.restarts;
  checkpoint.begin.skipped_steps =
      skipped_before_ + std::count_if(skipped_steps_.begin(), skipped_steps_.end(),
                                      [&](int64_t step) { return step < newest->position.step; });
  checkpoint.resume.clear();
}

// Returns the checkpoints of this run, newest first; for equal steps the one in memory comes first.
std::vector<std::string> Restarts::commits() const {
  const CheckpointSettings& s = spec_.checkpoint;
  std::vector<std::string> ours =
      s.memory.empty() ? std::vector<std::string>() : checkpoint::whole_checkpoints(s.memory);
  for (std::string& each : commits_of(s.lineage.run, s.folder)) ours.push_back(std::move(each));
  const auto step = [](const std::string& path) {
    return checkpoint::parse_checkpoint_name(std::filesystem::path(path).filename().string())->step;
  };
  std::stable_sort(ours.begin(), ours.end(), [&](const auto& a, const auto& b) { return step(a) > step(b); });
  return ours;
}

std::string Restarts::words() const {
  if (done() == 0) return "";
  if (spec_.launch.node_rank > 0) return fmt::format("prun: node {} joins again\n", spec_.launch.node_rank);
  const std::string& disk = spec_.checkpoint.resume;
  const std::string from = !spec_.checkpoint.resumes ? "the beginning"
                                                     : fmt::format("step {} ({})", spec_.checkpoint.begin.step,
                                                                   disk.empty() ? "the nodes' memory" : disk);
  if (grows_) return fmt::format("prun: goes on with the nodes that have come, from {}\n", from);
  if (most_ranks_ > 0) return fmt::format("prun: goes on with fewer ranks from {}\n", from);
  return fmt::format("prun: restart {} of {} from {}{}\n", restarts_, spec_.restart.most, from, left_out_);
}

}  // namespace prun
