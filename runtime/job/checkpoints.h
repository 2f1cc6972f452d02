// --checkpoint and --resume: what they mean before the job is compiled, and whether the checkpoint fits it after.
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
  std::string memory_here;  // that folder on this node, whether it is used or not
  std::string kept;         // settled: the commit in the memory of several nodes to begin with (kept_commits.h), or ""
  bool new_data = false;    // data that differ from the checkpoint's begin at their first sample
  std::string replaced_data_of;  // settled: the checkpoint whose data were replaced, or ""
  bool strict = false;           // a failed save ends the job
  int grace_s = 25;              // seconds from SIGTERM or Ctrl-C to the last checkpoint
  std::string resume;            // auto or a path; settled: the checkpoint's folder, or ""
  bool resumes = false;          // settled: the run begins with a checkpoint, or with `kept`
  RunPosition begin;             // settled: its position; also without one, the samples that steps skip
  Numerics numerics;             // settled: of the checkpoint in `resume`
  std::string mesh;              // settled: its mesh
  bool overwrite = false;        // --overwrite
  bool replaces = false;         // settled: the folder's checkpoints are another run's, and will be removed
  checkpoint::Lineage lineage;   // settled: lineage of this run's checkpoints
  std::string origin;            // settled: the checkpoint that the first attempt began with, or ""
  std::set<std::string> read;    // settled: names in the folder that --checkpoint-keep does not remove
};

// Throws usage_error for options that do not go together.
void check_checkpoint_options(const CheckpointSettings& settings);
// Makes the folder, finds the checkpoint to begin with and reads it whole; a damaged one is said, and with `auto` the
// one before it in its branch is taken. Throws checkpoint_write and checkpoint_invalid. `decides`: true on node 0,
// which resolves `auto`. `commits`: the run's own commits at a restart, newest first; the first whole one is taken.
void settle_checkpoints(CheckpointSettings& settings, bool decides, const std::vector<std::string>& commits = {});
// What the plan asks for, where the command line says nothing else.
void take_from_plan(JobSpec& spec, const Plan& plan);
// What node 0 has settled for the ranks of all nodes, whose folders may have other names.
std::string note_of(const CheckpointSettings& settings);
void follow_note(CheckpointSettings& settings, const std::string& note);
int64_t checkpoint_bytes(const Job& job);  // of one, about: without headers and the index
// Throws checkpoint_write where the folder's disk has no room for one checkpoint of the job.
void require_space(const CheckpointSettings& settings, const Job& job);
// Throws checkpoint_invalid, with both sides, where the job is another model's.
void require_checkpoint_fits(const CheckpointSettings& settings, const Job& job);

}  // namespace prun
