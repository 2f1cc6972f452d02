// The path of this machine's calibration file, which `prun calibrate` writes.
#pragma once
#include <string>

namespace prun {

// Returns $XDG_CONFIG_HOME/prun/HOST.yaml, otherwise ~/.config/prun/HOST.yaml; "" without a home.
std::string calibration_path();
// Returns the same path, or "" if that file does not exist.
std::string existing_calibration();

}  // namespace prun
