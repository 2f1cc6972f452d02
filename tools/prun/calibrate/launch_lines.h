// A launch whose ranks measure, and what they print.
#pragma once
#include <string>
#include <vector>

#include "launch/launch.h"

namespace prun {

// Throws Error with the exit code of ranks that fail; the launcher has said why.
std::vector<std::string> launch_lines(const LaunchOptions& options, const std::string& job,
                                      const Launch::RankMain& rank_main);

}  // namespace prun
