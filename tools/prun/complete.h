#pragma once
#include <string>
#include <vector>

namespace prun {

// prun __complete WORD ..: prints candidates for the last word, one a line, and no errors.
int complete_command(const std::vector<std::string>& words);

}  // namespace prun
