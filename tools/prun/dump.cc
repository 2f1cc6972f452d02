// prun dump PLAN: the program as text, the same that golden tests compare.
#include <fmt/format.h>

#include "commands.h"

namespace prun {

int dump_command(const Options& options, const Places& places) {
  fmt::print("{}", dump_job(build_job(options, places, options.nproc * options.nnodes)));
  return 0;
}

}  // namespace prun
