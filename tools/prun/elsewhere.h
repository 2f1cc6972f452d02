// Translates options of torchrun, deepspeed, accelerate and MPI launchers into prun's, from one table.
#pragma once
#include <string>

namespace prun {

// Returns " (here: --nproc)", or "" for an unknown option; reads "_" as "-".
std::string option_here(std::string name);
// Translates an option's value: " (here: cuda)" for --device gpu.
std::string value_here(const std::string& option, const std::string& value);

}  // namespace prun
