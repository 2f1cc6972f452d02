// The environment variables that prun reads, with their help: for the manual page and `prun doctor`.
#pragma once
#include <string>
#include <vector>

namespace prun {

struct Variable {
  const char *name, *help;
  bool secret = false;    // its value is never shown
  const char* ours = "";  // the value that prun itself sets
};
const std::vector<Variable>& variables();

// A variable of the environment without effect: prun reads none of this name, or it names a folder that does not exist.
struct UselessVariable {
  std::string name, problem, fix;  // "PRUN_PLUGINPATH", "set, and ..", "did you mean PRUN_PLUGIN_PATH?"
};
std::vector<UselessVariable> useless_variables();
// Prints a line for each on standard error. Call at the start of a run.
void warn_of_useless_variables();

}  // namespace prun
