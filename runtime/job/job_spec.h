// What a job is: its plan, and all that the command line says of how to compile, run and watch it. Commands fill it in;
// `settle_*` and `check_*` functions complete it once, before ranks start. Ranks inherit it by fork.
#pragma once
#include <map>
#include <string>

#include "comm/comm.h"
#include "job/bind.h"
#include "job/checkpoints.h"
#include "job/generation.h"
#include "job/kernels.h"
#include "job/restart.h"
#include "launch/launch.h"
#include "watch/watch_spec.h"

namespace prun {

// What the program of a plan is compiled for.
enum class Purpose {
  train,     // ranks run it
  generate,  // ranks continue a text with its model
  check,     // no rank runs it; all is checked that training would need
  describe,  // no rank runs it: dump, sim, tune, draw, diff
};

struct JobSpec {
  Purpose purpose = Purpose::describe;

  // The plan and what is compiled into its program.
  std::string plan, lua_dir;                    // lua_dir: the folder of the DSL
  std::map<std::string, std::string> settings;  // --set, by argument
  std::string device = "cpu", device_options;
  int pad_vocabulary = 0;         // multiple of the columns of logits; 0 = the device's
  bool every_microbatch = false;  // lists and proves each microbatch of a schedule instead of one period
  bool joins_steps = false;       // the simulated devices run each step as a whole, whatever `device` is
  bool check_finite = false;
  std::string non_finite;    // policy of --non-finite; "" = none
  int check_replicas = 100;  // steps between checks; 0 = none
  bool prove = false;        // the plan, made small, runs beside one rank first
  bool time_passes = false;
  std::string dump_after;  // the pass whose result is printed; "" = none

  // The ranks: where they run, and with what.
  LaunchOptions launch;
  WorldOptions world;  // without the place and the device of a rank, which a rank fills in
  int first_device = 0, ranks_per_device = 1;
  KernelSettings kernels;
  std::string bind = "auto";
  Binding binding;         // settled: of the ranks of this node
  std::string port_range;  // --port-range A:B; "" = any free ports
  std::string chaos;       // faults to inject

  // What outlives an attempt.
  CheckpointSettings checkpoint;
  RestartSettings restart;

  GenerationSettings generation;  // of Purpose::generate
  WatchSpec watch;

  int ranks() const { return launch.nproc * launch.nnodes; }
  // Returns the index of the device that a rank of this node computes on.
  int device_of(int local_rank) const { return first_device + local_rank / ranks_per_device; }
};

}  // namespace prun
