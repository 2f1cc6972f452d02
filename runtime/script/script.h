// Runs a plan script in a sandboxed child process and returns what it recorded. Call it before the process has threads.
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
  std::optional<PlanSizes> sizes;               // instead of the plan's own
  std::vector<PlanSizes> more_sizes;            // beside `sizes`: of the same model, on pipelines of other lengths
  bool outline = false;                         // without the turns of a pipeline, which are many
  double cpu_seconds = 10;                      // limit of the child
  int64_t memory_bytes = 512LL << 20;
};

// An argument of the plan (prun.args).
struct PlanArgument {
  std::string name;
  std::string kind;     // integer, number, text, boolean, numbers
  std::string initial;  // as one would write it after --set name=
  std::string help;
  std::string tune;  // what prun tune tries, as after --search name=; or ""
};

struct ScriptResult {
  std::string plan_cbor;                       // see ir/plan_reader.h; empty when help was asked
  std::map<std::string, std::string> modules;  // those of the user's, by their path from the plan's folder: the text
  std::vector<PlanArgument> arguments;         // when help was asked
  bool is_plan = true;                         // false: help was asked of a script that returns no plan
  double processor_seconds = 0;                // of a ScriptServer's child; else it is a child of this process
  std::string description;                     // the first sentence of the comment that the plan begins with
};

// The plan's file: as typed, else among the plans beside lua/, which come with prun. Throws usage_error.
std::string find_plan(const std::string& plan_path, const std::string& lua_dir);

// Throws Error: plan (with file and line), script_limit, usage (no such plan, unknown --set name).
ScriptResult run_script(const ScriptOptions& options);

}  // namespace prun
