// One rank of `prun bench`: opens the transports, measures row after row; rank 0 prints each as a line of JSON.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "launch/launch.h"

namespace prun {

// start.job holds the packed words of the command line. start.recorder is kBenchNote bytes of text: what the rank does.
constexpr size_t kBenchNote = 256;

// The exit code of the rank's process; failures go to the launcher through start.launcher.
int run_bench_rank(const RankStart& start, const std::vector<std::string>& plugin_dirs,
                   const std::string& algorithm_costs = "");

}  // namespace prun
