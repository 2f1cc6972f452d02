// A word as a shell takes it, for commands that are printed to be copied.
#pragma once
#include <string>

namespace prun {

std::string shell_word(const std::string& word);  // in quotes where it needs them

}  // namespace prun
