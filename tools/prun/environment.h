// The variables that prun reads, and what they are: for the manual page and `prun doctor`.
#pragma once
#include <vector>

namespace prun {

struct Variable {
  const char *name, *help;
  bool secret = false;    // its value is never shown
  const char* ours = "";  // what prun itself sets it to
};
const std::vector<Variable>& variables();

}  // namespace prun
