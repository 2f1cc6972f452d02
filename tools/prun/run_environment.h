// What of the environment a run depends on, for its folder. Variables are listed by the beginnings of their names, and
// none whose name speaks of a secret: an environment is where people keep their keys.
#pragma once
#include <string>

namespace prun {

std::string run_environment_json();

}  // namespace prun
