// The calibration of this machine's file, which `prun calibrate` writes.
#pragma once
#include <string>

namespace prun {

// $XDG_CONFIG_HOME/prun/HOST.yaml, otherwise ~/.config/prun/HOST.yaml; "" without a home.
std::string calibration_path();
// The same, or "" if that file does not exist.
std::string existing_calibration();

}  // namespace prun
