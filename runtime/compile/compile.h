// Compiles a plan to a job: runs the passes of pipeline.cc in their order.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compile/forward.h"
#include "compile/generation.h"
#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

// Result of one pass, for --time-passes and dump --after.
struct PassReport {
  std::string_view name;
  int rank_class = -1;  // index of the pass's program in Job::classes; -1: the pass ran once for all classes
  double seconds = 0;
  // Returns the model graph, the schedule or the program after the pass. Valid only during the report.
  std::function<std::string()> text;
};

struct CompileOptions {
  std::string device = "cpu";
  bool check_finite = false;   // adds ops that detect NaN and infinity
  int64_t check_replicas = 0;  // period in steps of comparing replicas; 0 = never
  bool widen = false;  // stores every float as f64: the program is the same, casts and wire types change nothing
  int64_t checkpoint_every = 0;          // steps; 0 = no checkpoints
  bool resumes = false;                  // starts from the state of a checkpoint
  RunPosition begin;                     // Schedule::begin; tokens -1 = derived from the samples of this plan
  int64_t most_skips = 0;                // Schedule::most_skips
  std::optional<Generation> generation;  // replaces training; the plan comes from generation_plan
  std::optional<Forward> forward;        // replaces training; the plan comes from forward_plan
  bool count_memory = false;             // counts live bytes and assigns no offsets; cannot run
  bool joins_steps = false;   // no op is carried over the end of a step, because the device runs each step as a whole
  bool leave_memory = false;  // skips arena sizes, for callers that only predict the time of a step
  bool leaves_views = false;  // every view is a copy, so that a proof also compares views with the ops that read them
  bool every_microbatch = false;  // lists every microbatch of a periodic schedule instead of a repeat
  std::vector<int> only_classes;  // compiles these classes only, so that the job cannot run; empty = all classes
  // Returns the bytes of scratch that an op needs on the device; null = none needed.
  std::function<int64_t(const Program&, const Op&)> workspace_bytes;
  // Returns whether the device has a kernel for the fused op `kind` (fuse.cc); null = it has none.
  std::function<bool(std::string_view kind)> fuses;
  // Device::vocabulary_multiple: the columns of logits are padded to a multiple of it (pad_vocabulary.cc); 1 = no
  // padding.
  int64_t vocabulary_multiple = 1;
  // Called after each pass, once per class for a pass that runs per class of ranks. May be null.
  std::function<void(const PassReport&)> after_pass;
  // Called when compilation starts over and the previous reports are void. May be null.
  std::function<void()> starts_over;
};

// Throws plan_error with the source location of the faulty line of the plan.
Job compile(const Plan& plan, const CompileOptions& options);

// Returns the names of all passes in their order, as in PassReport.
std::vector<std::string_view> pass_names();

}  // namespace prun
