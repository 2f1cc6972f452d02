// Runs a plan script in a sandboxed child process and returns the recorded plan. Call it before the process has
// threads.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/plan.h"

namespace prun {

struct ScriptOptions {
  std::string plan_path;  // as the user typed it
  std::string lua_dir;    // our lua/ folder
  int world = 1;
  std::map<std::string, std::string> settings;  // --set name=value
  bool help = false;                            // only list the plan's arguments
  std::optional<PlanSizes> sizes;               // replace the plan's own sizes
  std::vector<PlanSizes> more_sizes;            // further sizes: the same model on pipelines of other lengths
  std::string base;                             // replaces the path of prun.init.from; "" = none
  std::string base_was;                         // used if the path of prun.init.from is missing; "" = none
  bool reads_data = true;                       // false: files of data may be missing or shorter than a sample
  bool prints = true;                           // the script's print and remarks reach standard error
  bool outline = false;                         // omit the slots of a pipeline schedule, which are many
  double cpu_seconds = 10;                      // limit of the child
  int64_t memory_bytes = 512LL << 20;
};

// An argument of the plan (prun.args).
struct PlanArgument {
  std::string name;
  std::string kind;     // integer, number, text, boolean, numbers
  std::string initial;  // as written after --set name=
  std::string help;
  std::string tune;  // values for prun tune, as after --search name=; "" = none
};

struct ScriptResult {
  std::string plan_cbor;                       // see ir/plan_reader.h; empty with `help`
  std::map<std::string, std::string> modules;  // text of the user's modules, by their path from the plan's folder
  std::vector<PlanArgument> arguments;         // with `help`
  bool is_plan = true;                         // false: with `help`, and the script returns no plan
  double processor_seconds = 0;                // time of a ScriptServer's child; 0 = it ran as a child of this process
  std::string description;                     // first sentence of the plan's leading comment
};

// Returns the plan's file: as typed, otherwise among the plans that come with prun, next to lua/. Throws usage_error.
std::string find_plan(const std::string& plan_path, const std::string& lua_dir);

// The first run of a plan in this process without `help` prints, later ones do not. Throws Error: plan (with file and
// line), script_limit, usage (no such plan, unknown --set name).
ScriptResult run_script(const ScriptOptions& options);
// The next run of each plan prints again.
void print_again();

}  // namespace prun
