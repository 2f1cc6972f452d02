// A job: its plan and all command-line options for compiling, running and watching it. Commands fill it in; `settle_*`
// and `check_*` functions complete it once, before ranks start. Ranks inherit it by fork.
#pragma once
#include <map>
#include <string>

#include "comm/comm.h"
#include "job/bind.h"
#include "job/checkpoints.h"
#include "job/forward_settings.h"
#include "job/generation.h"
#include "job/kernels.h"
#include "job/restart.h"
#include "launch/launch.h"
#include "watch/watch_spec.h"

namespace prun {

// Purpose for which a plan's program is compiled.
enum class Purpose {
  train,     // ranks run it
  generate,  // ranks continue a text with its model
  evaluate,  // ranks compute the loss of a checkpoint
  predict,   // ranks write a value of the model for each sample
  check,     // no rank runs it; everything that training needs is checked
  describe,  // no rank runs it: dump, sim, tune, draw, diff
};

struct JobSpec {
  Purpose purpose = Purpose::describe;

  // The plan and its compile options.
  std::string plan, lua_dir;                    // lua_dir: the folder of the DSL
  std::map<std::string, std::string> settings;  // --set, by argument
  std::string device = "cpu", device_options;
  int pad_vocabulary = 0;         // multiple of the columns of logits; 0 = the device's
  bool every_microbatch = false;  // lists and proves each microbatch of a schedule instead of one period
  bool joins_steps = false;       // the simulated devices run each step as a whole, whatever `device` is
  bool check_finite = false;
  std::string non_finite;    // policy of --non-finite; "" = none
  int check_replicas = 100;  // steps between checks; 0 = none
  bool prove = false;        // first proves a shrunk plan against one rank
  bool time_passes = false;
  std::string dump_after;  // the pass whose result is printed; "" = none

  // The ranks: placement and resources.
  LaunchOptions launch;
  WorldOptions world;  // without a rank's place and device, which the rank fills in
  int first_device = 0, ranks_per_device = 1;
  KernelSettings kernels;
  std::string bind = "auto";
  Binding binding;         // settled: binding of the ranks of this node
  std::string port_range;  // --port-range A:B; "" = any free ports
  std::string chaos;       // faults to inject

  // State that outlives an attempt.
  CheckpointSettings checkpoint;
  RestartSettings restart;

  GenerationSettings generation;  // settings of Purpose::generate
  ForwardSettings forward;        // settings of Purpose::evaluate and Purpose::predict
  WatchSpec watch;

  bool runs_forward() const { return purpose == Purpose::evaluate || purpose == Purpose::predict; }
  int ranks() const { return launch.nproc * launch.nnodes; }
  // Returns the index of the device that a rank of this node computes on.
  int device_of(int local_rank) const { return first_device + local_rank / ranks_per_device; }
};

}  // namespace prun
