#pragma once
#include <string>

namespace prun {

// Returns WorldOptions::algorithm_costs of this machine for a job with these options of its transport, or "" without a
// calibration. Throws usage_error for a file that cannot be read.
std::string calibrated_algorithm_costs(const std::string& transport_options = "");

}  // namespace prun
