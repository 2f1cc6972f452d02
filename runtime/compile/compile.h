// Plan in, job out: the passes of pipeline.cc in their order.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compile/generation.h"
#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

// What one pass did, for --time-passes and dump --after.
struct PassReport {
  std::string_view name;
  int rank_class = -1;  // index in Job::classes of the program it worked on; -1: it ran once for all
  double seconds = 0;
  // What the passes have made so far: the model graph, the schedule, or the program. Valid during the report only.
  std::function<std::string()> text;
};

struct CompileOptions {
  std::string device = "cpu";
  bool check_finite = false;   // ops that find NaNs and infinities
  int64_t check_replicas = 0;  // steps after which ranks compare what they have alike; 0: never
  bool widen = false;          // every float is stored as f64: the program is the same, casts and wires change nothing
  int64_t checkpoint_every = 0;          // steps; 0: no checkpoints
  bool resumes = false;                  // begins with the state of a checkpoint
  RunPosition begin;                     // Schedule::begin; tokens -1 = those of as many samples of this plan
  int64_t most_skips = 0;                // Schedule::most_skips
  std::optional<Generation> generation;  // instead of a training; the plan is generation_plan's
  bool count_memory = false;      // arenas have the size of what lives at once; nothing is placed, so nothing can run
  bool joins_steps = false;       // nothing goes on over the end of a step: the device runs each as a whole
  bool leave_memory = false;      // arenas have no size: for who asks how long a step takes
  bool every_microbatch = false;  // a schedule that recurs is listed as it is, not as one that repeats
  std::vector<int> only_classes;  // programs of others stay empty, and nothing can run; none: all are made
  // Scratch of one op on that device; null: none needed.
  std::function<int64_t(const Program&, const Op&)> workspace_bytes;
  // Whether the device wants ops to be made one op of that kind (fuse.cc); null: it has no such kernels.
  std::function<bool(std::string_view kind)> fuses;
  // Device::vocabulary_multiple: the columns of logits are padded to a multiple of it (pad_vocabulary.cc); 1: they are
  // not.
  int64_t vocabulary_multiple = 1;
  // Called after each pass; a pass that runs for each class of ranks is reported once a class. Null: nobody asks.
  std::function<void(const PassReport&)> after_pass;
  // Called when the passes begin again, and what was reported is no part of the job. Null: nobody asks.
  std::function<void()> starts_over;
};

// Throws plan_error with the site of the plan's line that is wrong.
Job compile(const Plan& plan, const CompileOptions& options);

// The names of all passes in their order, as PassReport has them.
std::vector<std::string_view> pass_names();

}  // namespace prun
