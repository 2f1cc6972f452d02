// One rank: from the bytes of the job to its last step.
#pragma once
#include "launch/launch.h"
#include "options.h"

namespace prun {

// The exit code of the rank's process; failures go to the launcher through start.link.
int run_rank(const RankStart& start, const Options& options, const std::vector<std::string>& plugin_dirs);

}  // namespace prun
