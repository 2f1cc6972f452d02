// Translates options and commands of torchrun, deepspeed, accelerate and MPI launchers into prun's, from tables.
#pragma once
#include <string>

namespace prun {

// Returns " (here: --nproc)", or "" for an unknown option; reads "_" as "-".
std::string option_here(std::string name);

// An option that is an argument of most plans: --set NAME=VALUE. In other plans it is written in the file.
struct SettingHere {
  const char *theirs, *name, *value, *in_plan;
};
const SettingHere* setting_here(std::string name);  // null: not such an option

// Translates an option's value: " (here: cuda)" for --device gpu.
std::string value_here(const std::string& option, const std::string& value);
// Translates a command: "prun status" for `ps`, or "". `plan`: the word after it, or PLAN.
std::string command_here(const std::string& name, const std::string& plan);

}  // namespace prun
