// Launches ranks that measure, and collects their printed lines.
#pragma once
#include <string>
#include <vector>

#include "launch/launch.h"

namespace prun {

// Throws Error with the exit code of failed ranks; the launcher has reported the cause.
std::vector<std::string> launch_lines(const LaunchOptions& options, const std::string& job,
                                      const Launch::RankMain& rank_main);

}  // namespace prun
