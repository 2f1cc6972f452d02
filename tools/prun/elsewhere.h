// Words of torchrun, deepspeed, accelerate and MPI's launchers, and ours for them, as one table.
#pragma once
#include <string>

namespace prun {

// " (here: --nproc)", or "" for an option that nobody has; "_" in it is read as "-".
std::string option_here(std::string name);
// The same of an option's value: " (here: cuda)" for --device gpu.
std::string value_here(const std::string& option, const std::string& value);

}  // namespace prun
