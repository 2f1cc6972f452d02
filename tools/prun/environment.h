// The environment variables that prun reads, with their help: for the manual page and `prun doctor`.
#pragma once
#include <vector>

namespace prun {

struct Variable {
  const char *name, *help;
  bool secret = false;    // its value is never shown
  const char* ours = "";  // the value that prun itself sets
};
const std::vector<Variable>& variables();

}  // namespace prun
