// prun dump PLAN: the program as text, the same that golden tests compare.
#include <fmt/format.h>

#include "build_job.h"
#include "commands.h"

namespace prun {

int dump_command(Options& options) {
  fmt::print("{}", dump_job(build_job(options, options.launch.nproc * options.launch.nnodes)));
  return 0;
}

}  // namespace prun
