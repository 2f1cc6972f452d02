// What of the environment a run depends on, for its folder. Variables are listed by the beginnings of their names, and
// none whose name speaks of a secret: an environment is where people keep their keys.
#pragma once
#include <string>

namespace prun {

std::string run_environment_json();
std::string processor_name();  // as Linux calls it; "" where it does not say

}  // namespace prun
