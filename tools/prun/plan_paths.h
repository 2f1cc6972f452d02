// The plans that come with prun.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace prun {

// "plans/zero3.lua" ..: of plans/ and plans/custom/ below the folder that has lua/.
std::vector<std::string> plan_paths(const std::filesystem::path& root);

}  // namespace prun
