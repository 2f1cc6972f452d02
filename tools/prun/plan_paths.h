// The plans that come with prun.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace prun {

// Returns "plans/zero3.lua" ..: the plans in plans/ and plans/custom/ below the folder that contains lua/.
std::vector<std::string> plan_paths(const std::filesystem::path& root);

}  // namespace prun
