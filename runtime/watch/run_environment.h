// Environment of a run, for its folder. Variables are selected by prefix; names that suggest a secret are excluded.
#pragma once
#include <string>

namespace prun {

std::string run_environment_json();
std::string processor_name();  // as reported by Linux; "" if unknown

}  // namespace prun
