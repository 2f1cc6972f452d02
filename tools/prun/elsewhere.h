// Translates options and commands of torchrun, deepspeed, accelerate and MPI launchers into prun's, from tables.
#pragma once
#include <string>

namespace prun {

// Returns " (here: --nproc)", or "" for an unknown option; reads "_" as "-".
std::string option_here(std::string name);
// Translates an option's value: " (here: cuda)" for --device gpu.
std::string value_here(const std::string& option, const std::string& value);
// Translates a command: "prun status" for `ps`, or "". `plan`: the word after it, or PLAN.
std::string command_here(const std::string& name, const std::string& plan);

}  // namespace prun
