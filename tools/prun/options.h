// The command line: `prun PLAN [options]` and `prun COMMAND ...`, as one value that commands hand on by reference.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "bench/settings.h"
#include "bind.h"
#include "calibrate/settings.h"
#include "checkpoints.h"
#include "ckpt.h"
#include "comm/comm.h"
#include "draw/settings.h"
#include "generation_settings.h"
#include "job_kernels.h"
#include "launch/launch.h"
#include "metrics_file.h"
#include "restart.h"
#include "sim_settings.h"
#include "step_window.h"

namespace prun {

struct Options {
  std::string command = "run";        // a name of command_texts()
  std::string plan;                   // conform: the plugin, unless --device names it
  std::vector<std::string> operands;  // what follows: conform's items, bench's operations
  std::vector<std::string> words;     // all, as typed
  bool help = false, json = false, quiet = false, verbose = false;
  std::string log_level;                     // "": PRUN_LOG, or warnings
  bool explain = false;                      // plugins
  bool dry_run = false, prometheus = false;  // clean; status
  bool check_finite = false, time_passes = false;
  bool every_microbatch = false;  // what repeats is listed, and proved, as often as it runs
  int pad_vocabulary = 0;         // the columns of logits, to a multiple of it; 0: as the device wants
  bool prove = false;             // run, check: run the plan, made small, beside one rank
  std::string non_finite;         // the policy of --non-finite; "": nobody looks
  int check_replicas = 100;       // steps; 0: never
  std::string after;              // dump: the pass whose result is printed
  std::string traces;             // dump --format chakra: the files begin so
  bool chakra = false;
  LaunchOptions launch;
  WorldOptions world;  // without the rank's place and device, which a rank fills in
  std::string device = "cpu", device_options;
  bool device_given = false;  // doctor, conform: this device is asked about
  int first_device = 0, ranks_per_device = 1;
  KernelSettings kernels;
  std::map<std::string, std::string> settings;  // --set
  std::string bind = "auto";
  Binding binding;         // of the ranks here; made by the command
  std::string port_range;  // --port-range A:B
  std::string launcher;    // --launcher: the environment that tells this process its place
  MetricsSettings metrics;
  StepWindow trace_steps;
  std::string trace, runs;  // runs: the folder for this run's folder
  std::string chaos;
  std::vector<std::string> hosts;  // of --cluster, by node (run, doctor)
  CheckpointSettings checkpoint;
  RestartSettings restart;
  GenerationSettings generation;
  BenchSettings bench;
  SimSettings sim;
  CalibrateSettings calibrate;
  CkptSettings ckpt;
  DrawSettings draw;
  std::map<std::string, std::string> diff_settings;  // diff --to

  std::string program, lua_dir;  // this executable, and the DSL that it finds
};

// A command's words as the option tables have them: for --help, completion and manual pages.
struct OptionText {
  std::vector<std::string> names;  // "--quiet", "-q"
  std::string unit, help;          // unit: "" for a flag
};
struct CommandText {
  std::string name, usage, help;
  std::vector<OptionText> options;
};
std::vector<CommandText> command_texts();  // the first is `prun PLAN`

// Throws usage_error.
Options parse_options(const std::vector<std::string>& words);
// Sets program, lua_dir and the folders of plugins. Throws usage_error where lua/ is not beside the program.
void find_installation(Options& options);
// What --help prints: of `prun` as a whole, or of a command.
std::string usage(const Options& options);
// The command's exit code.
int run_chosen_command(Options& options);

// Which of the host's devices a rank computes on: those from --device NAME:FIRST on, one a rank or shared.
int device_of(const Options& options, int local_rank);

}  // namespace prun
