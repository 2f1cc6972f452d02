// The command line: `prun PLAN [options]` and `prun COMMAND ...`, as one value that commands hand on by reference.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "bench/settings.h"
#include "calibrate/settings.h"
#include "ckpt.h"
#include "draw/settings.h"
#include "job/job_spec.h"
#include "sim_options.h"

namespace prun {

struct Options {
  std::string command = "run";        // a name of command_texts()
  std::vector<std::string> operands;  // what follows: conform's items, bench's operations
  bool help = false, json = false, verbose = false;
  std::string log_level;                     // "": PRUN_LOG, or warnings
  bool explain = false;                      // plugins
  bool dry_run = false, prometheus = false;  // clean; status
  std::string traces;                        // dump --format chakra: the files begin so
  bool chakra = false;
  JobSpec job;                     // conform: its plan is the plugin, unless --device names it
  bool device_given = false;       // doctor, conform: this device is asked about
  std::string launcher;            // --launcher: the environment that tells this process its place
  std::vector<std::string> hosts;  // of --cluster, by node (run, doctor)
  BenchSettings bench;
  SimSettings sim;
  CalibrateSettings calibrate;
  CkptSettings ckpt;
  DrawSettings draw;
  std::map<std::string, std::string> diff_settings;  // diff --to

  std::string program;  // this executable
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

}  // namespace prun
