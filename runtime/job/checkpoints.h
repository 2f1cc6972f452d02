// --checkpoint and --resume: settles them before the job is compiled, and checks that the checkpoint fits the job.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct JobSpec;

struct CheckpointSettings {
  std::string folder;       // --checkpoint
  int every = 0;            // steps; 0: at the end only
  int keep = 0;             // 0: all
  std::string memory;       // settled: the folder of this run in the host's memory (replicas.h), or ""
  std::string memory_here;  // that folder on this node, even if unused
  std::string kept;         // settled: the commit in the memory of several nodes to begin from (kept_commits.h), or ""
  bool new_data = false;    // data that differ from the checkpoint's begin at their first sample
  std::string replaced_data_of;  // settled: the checkpoint whose data were replaced, or ""
  bool strict = false;           // a failed save ends the job
  int grace_s = 25;              // seconds from SIGTERM or Ctrl-C to the last checkpoint
  std::string resume;            // auto or a path; settled: the checkpoint's folder, or ""
  std::string base;              // --base; settled: absolute
  bool ema = false;              // --ema: evaluations, predictions and generations read running averages of the weights
  std::string base_digest;       // settled: digest of the weights of the plan's base, or ""
  bool resumes = false;          // settled: the run begins from a checkpoint or from `kept`
  RunPosition begin;             // settled: its position; without a checkpoint, only skipped samples
  Numerics numerics;             // settled: numerics of the checkpoint in `resume`
  std::string mesh;              // settled: mesh of that checkpoint
  bool overwrite = false;        // --overwrite
  bool replaces = false;         // settled: the folder's checkpoints are another run's, and will be removed
  checkpoint::Lineage lineage;   // settled: lineage of this run's checkpoints
  std::string origin;            // settled: the checkpoint from which the first attempt began, or ""
  std::set<std::string> read;    // settled: names in the folder that --checkpoint-keep does not remove
};

// Throws usage_error for options that do not go together.
void check_checkpoint_options(const CheckpointSettings& settings);
// Creates the folder, finds the checkpoint to begin from, and reads it whole. A damaged one is reported; with `auto`
// its predecessor in the branch is used. Throws checkpoint_write and checkpoint_invalid. `decides`: true on node 0,
// which resolves `auto`. `commits`: the run's own commits at a restart, newest first; the first whole one is used.
void settle_checkpoints(CheckpointSettings& settings, bool decides, const std::vector<std::string>& commits = {});
// Applies the plan's checkpoint settings unless the command line overrides them.
void take_from_plan(JobSpec& spec, const Plan& plan);
// Packs node 0's settled settings for the ranks of all nodes, whose folders may have other names.
std::string note_of(const CheckpointSettings& settings);
void follow_note(CheckpointSettings& settings, const std::string& note);
int64_t checkpoint_bytes(const Job& job);  // size of one checkpoint without headers and index
// Throws checkpoint_write if the folder's disk lacks space for one checkpoint of the job.
void require_space(const CheckpointSettings& settings, const Job& job);
// Throws checkpoint_invalid, naming both sides, if the job's model differs.
void require_checkpoint_fits(const CheckpointSettings& settings, const Job& job);

}  // namespace prun
